"""Agents as generators that call a model and tools, and the driver that runs many attempts together.

Read agent.py (the interface of an agent), program.py (the driver), react.py and tool_use.py (the loop that several
agents use). The other agents are zero_shot.py, plan_execute.py, multi_agent.py, scratchpad.py, code_executor.py, and
python.py for agents of the user. scripted.py and scripted_code.py need no model. prompts.py and brief.py contain their
texts, models.py opens their model, scorers.py scores attempts. Nothing here trains.
"""
