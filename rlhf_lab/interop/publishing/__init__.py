"""Publication of a finished run's model as a self-contained directory or hub repository: `publish RUN to=…`.

Read publish.py, which runs the steps in order and uploads: provenance.py (origin of the model), refusals.py (reasons
not to publish a run), model_files.py (copies or exports the weights), card.py (the model card), leaks.py (content that
must not leave the machine), same_model.py (comparison of published and saved weights).
"""
