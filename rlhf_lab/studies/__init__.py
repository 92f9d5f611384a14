"""What a study concludes from its jobs.

Read frame.py (jobs as rows), replication.py (what differs between seeds), replicates.py (the inference), verdict.py
(claims), finding.py (the sentences), table.py and curves.py.
"""
