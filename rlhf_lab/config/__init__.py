"""From command-line arguments to a checked config. Nothing here imports torch.

Read registry.py (group and kind → settings class), schema.py (YAML values → dataclasses), section.py and root.py (the
config of a run), inventory.py (options and recipes of all packs), compose.py (Hydra) and check.py (build, tune,
complete, rules). matching.py compares what the data provide with what other sections require. command_line.py reads a
command: typed_overrides.py, words.py and overrides.py parse its overrides, typed_sweep.py and study_levels.py determine
its study, and job_configs.py checks its jobs.
"""
