"""A finished run's model as a folder or hub repository that stands by itself: `publish RUN to=…`.

provenance.py reads what the model was made of, refusals.py says why a run is not published, model_files.py copies or
exports its files, card.py writes the model card, leaks.py looks for what must not leave the machine, same_model.py
compares the published files with the saved ones, hub.py sends them, publish.py does all of it in order.
"""
