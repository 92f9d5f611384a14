"""Language models that are asked: as judges of replies, and as writers of data.

Read requests.py (what is asked and answered), client.py (`complete_many`: the one way to ask), store.py (replies that
were paid for, the ledger, the budget), then pairwise.py and rubric.py. backends/ has who answers, and their settings.
"""
