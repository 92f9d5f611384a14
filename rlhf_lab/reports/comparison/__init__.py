"""What the page that compares two runs or two studies shows.

compare.py (the numbers), then view.py (the page); remarks.py says what is not like with like.
"""
