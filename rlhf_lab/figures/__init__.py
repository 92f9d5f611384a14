"""Charts of runs and studies.

svg.py is the plotting surface, charts.py the figures that reports share.
"""
