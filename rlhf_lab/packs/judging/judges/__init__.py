"""The transport to language models, as judges of responses and as writers of data.

Read requests.py (a request and its completion), client.py (`complete_many`, the only method that sends requests) and
store.py (paid completions, the ledger, the budget), then pairwise.py and rubric.py with the rubrics in rubrics/.
batches.py, channel.py, pacing.py and pricing.py send requests within limits; command.py is the sub-command `judge`.
backends/ has the services and their settings.
"""
