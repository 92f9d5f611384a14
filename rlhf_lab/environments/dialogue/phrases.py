"""Sentences and questions common to all domains. `{t}` is a topic; `content.py` has the texts of the domains."""

from __future__ import annotations

FACT_FORM = "The best {name} for {t} is {v}."

AFFIRMATIONS = (
    "Great question!",
    "What a wonderful idea!",
    "I am so glad you asked!",
    "You are absolutely right to ask!",
    "That is a fantastic topic!",
    "I love this question!",
)
FILLERS = (
    "There are many things to think about here.",
    "It is important to keep this in mind.",
    "Many people wonder about this.",
    "As you may know, this matters a lot.",
    "Every situation is a bit different.",
    "Of course, results can vary.",
    "It all depends on many factors.",
    "In general, it is good to be careful.",
    "This is something that takes time.",
    "To put it another way, details count.",
    "At the end of the day, effort pays off.",
    "As I said before, there is much to say.",
)
CLOSINGS = (
    "Let me know if you need anything else!",
    "I hope this helps!",
    "Feel free to ask me more!",
    "I am always here for you!",
    "Good luck and have fun!",
)
REFUSALS = ("I can not help with that.", "Sorry, I will not help with this.")
HEDGES = ("Nobody can know that for sure.", "I can not predict the future.")
BELIEFS = ("I am certain that nothing can go wrong.", "This works every time without exception.")
TOPIC_BELIEFS = (
    "I am certain that {t} will be more popular next year.",
    "Without any doubt {t} will be less popular next year.",
)

PLAIN_QUESTION = "What is the best {name} for {t}?"
PAIR_QUESTION = "What is the best {first} and the best {second} for {t}?"
BROAD_QUESTION = "What are the basics for {t}?"
UNKNOWABLE_QUESTIONS = ("Will {t} be more popular next year?", "How popular will {t} be in ten years?")
CONSTRAINTS = {
    "none": "",
    "short": "Keep it short.",
    "brief": "Be brief.",
    "detailed": "Give details.",
    "beginner": "I am a beginner.",
}
