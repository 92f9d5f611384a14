"""The tool world: questions about facts that can only be looked up with tools.

Read world.py (the environment), then bases.py and knowledge.py (facts), kinds.py (the catalogue of tasks),
demonstrations.py (the scripted solution of a task) and task_set.py (metadata of a task). retrieval.py and table.py are
further tools. roles.py has the prompts of small models. tools.py builds the corpus of `data=tools`. The text form of
calls is defined in data/text_calls.py. bench/ contains AgentBench-Mini.
"""
