"""Charts of runs and studies.

charts.py writes their specifications (Vega-Lite), palette.py has their colours, render.py draws them: SVG and PNG, and
what a page needs to make them interactive.
"""
