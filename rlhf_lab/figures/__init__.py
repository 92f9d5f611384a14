"""Charts of runs and studies.

Read charts.py, which builds the Vega-Lite specifications from layers.py, vegalite.py and labels.py. render.py writes
them as SVG and PNG and packs the script that makes them interactive. palette.py defines the colours.
"""
