"""Charts of runs and studies.

charts.py first: it writes their specifications, in Vega-Lite, from layers.py, tables.py and labels.py. render.py draws
them, as SVG and PNG, and packs the script that makes them interactive on a page. palette.py has the colours.
"""
