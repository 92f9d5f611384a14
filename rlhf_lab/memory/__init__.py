"""Memory of a run: how much it needs, and which settings make it fit.

sizes.py, state.py and work.py are arithmetic on model shapes, which shapes.py finds without weights. Read copies.py
(the models that a stage holds) and plan.py (the sum), then fit.py (the smallest change with which a run fits),
neutral.py (changes that keep the result equal, and the messages before a run). devices.py has the memory of this
machine and counts devices. show.py and table.py print.
"""
