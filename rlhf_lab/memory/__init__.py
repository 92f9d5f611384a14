"""How much memory a run takes, and what would make it fit.

sizes.py, state.py and work.py are arithmetic on shapes; copies.py says which models a stage holds; plan.py adds them
up; fit.py searches the smallest change that fits, neutral.py one that changes no result, placement.py the fewest
devices with both; device.py reads the memory there is; show.py, table.py and recipe_table.py print.
"""
