"""Exports of rlhf_lab to other programs.

publishing/ writes a trained model, with a card, to a directory or to the hub: start with publishing/publish.py.
docs/publish.md lists the commands. The bridges to inspect-ai and to Parler-TTS belong to the packs agents and speech.
"""
