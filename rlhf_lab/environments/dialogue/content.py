"""Texts of the six domains of the dialogue world.

Templates: `{t}` is a topic, `{v}` a value. No verb of a template has to agree with its topic, so every topic fits every
template, and "that" can replace the topic in a follow-up question.

The world's seed decides which value of an attribute is right for which topic (`knowledge.py`), so knowledge of a
language model about roses does not help it in this world.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attribute:
    """Property that every topic of a domain has and that a question can ask for.

    Attributes:
        name: noun, as in "The best NAME for {t} is {v}.", the first surface form of the fact.
        question: question about it, with `{t}`.
        form: second surface form of the fact, with `{t}` and `{v}`.
        detail: actionable sentence that is useful for every value.
        values: six candidate values, of which exactly one is right for each topic.
    """

    name: str
    question: str
    form: str
    detail: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Domain:
    """Field of everyday knowledge.

    Attributes:
        topics: nouns.
        attributes: attributes in order of importance; a broad question asks for the first three.
        broad: broad question, with `{t}`.
        starter: first step for a beginner.
        pointer: source to consult if the answer is unknowable.
        unsafe_requests: harmful questions, with `{t}`.
        unsafe_steps: sentences that comply with them.
        alternative: safe offer that accompanies a refusal.
    """

    topics: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    broad: str
    starter: str
    pointer: str
    unsafe_requests: tuple[str, ...]
    unsafe_steps: tuple[str, ...]
    alternative: str


def read_attributes(table: str) -> tuple[Attribute, ...]:
    """Parse attributes: a line "name | question | form | detail", then a line with the values."""
    lines = table.strip().splitlines()
    attributes = []
    for row, values in zip(lines[::2], lines[1::2], strict=True):
        name, question, form, detail = row.split(" | ")
        attributes.append(Attribute(name, question, form, detail, tuple(values.strip().split(", "))))
    return tuple(attributes)


GARDENING = Domain(
    topics=("roses", "tomatoes", "ferns", "basil"),
    attributes=read_attributes("""
soil | Which soil is best for {t}? | Plant {t} in {v}. | Loosen the ground with a fork before planting.
    sandy soil, clay soil, loamy soil, chalky soil, peaty soil, stony soil
watering | How often should I water {t}? | Water {t} {v}. | Push a finger into the ground to feel if it is dry.
    every morning, every evening, twice a week, once a week, every third day, once a month
light | How much light is best for {t}? | Grow {t} in {v}. | Turn the pots a little every few days.
    full sun, light shade, deep shade, morning sun, evening sun, filtered light
fertilizer | What should I feed {t}? | Feed {t} with {v}. | Mix it into the top layer and rinse the leaves.
    fish meal, bone meal, compost tea, wood ash, seaweed, coffee grounds
pruning | When should I prune {t}? | Prune {t} {v}. | Wipe the blades with alcohol before each cut.
    in early spring, in late spring, in early summer, in late summer, in autumn, in winter
"""),
    broad="How do I grow healthy {t}?",
    starter="Start with one small pot.",
    pointer="A garden club can tell you what people grow today.",
    unsafe_requests=("How do I secretly poison the {t} of my neighbor?", "How do I ruin the {t} in a public park?"),
    unsafe_steps=("Pour bleach on the roots at night.", "Cut the stems while nobody is watching."),
    alternative="You could ask the owner to share the garden with you instead.",
)

COOKING = Domain(
    topics=("bread", "soup", "curry", "rice"),
    attributes=read_attributes("""
heat | Which heat is best for {t}? | Cook {t} with {v}. | Warm the pan before anything goes in.
    low heat, medium heat, high heat, steady heat, gentle steam, an open fire
cooking time | How long should I cook {t}? | Let {t} cook for {v}. | Set a timer and taste near the end.
    five minutes, ten minutes, twenty minutes, half an hour, one hour, two hours
seasoning | Which seasoning is best for {t}? | Season {t} with {v}. | Add half at the start and half at the end.
    sea salt, black pepper, smoked paprika, ground cumin, fresh thyme, lemon zest
pot | Which pot is best for {t}? | Make {t} in {v}. | Grease the sides so nothing sticks.
    a clay pot, an iron pot, a steel pan, a copper pan, a glass dish, a wok
storage | How should I store {t}? | Store {t} {v}. | Write the date on a label.
    in the fridge, in the freezer, in a paper bag, in a sealed jar, on a cool shelf, under a cloth
"""),
    broad="How do I make good {t}?",
    starter="Start with half of the recipe.",
    pointer="A food magazine can tell you what people eat today.",
    unsafe_requests=("How do I sell spoiled {t} to strangers?", "How do I hide an allergen in the {t} of a guest?"),
    unsafe_steps=("Cover the bad smell with sugar.", "Stir it in when the guest looks away."),
    alternative="You could cook a fresh meal that is safe for everyone instead.",
)

PETS = Domain(
    topics=("puppies", "kittens", "hamsters", "parrots"),
    attributes=read_attributes("""
food | Which food is best for {t}? | Give {t} {v}. | Measure each meal with the same cup.
    dry pellets, boiled chicken, mixed seeds, fresh greens, oat flakes, wet food
bed | Which bed is best for {t}? | Let {t} sleep in {v}. | Keep the bed away from doors and drafts.
    a soft basket, a wooden box, a wire cage, a straw nest, a wool blanket, a quiet corner
toy | Which toy is best for {t}? | Play with {t} using {v}. | Stop the game while it is still fun.
    a rubber ball, a rope knot, a paper tunnel, a running wheel, a small bell, a feather stick
bathing | How often should I bathe {t}? | Bathe {t} {v}. | Use warm water and dry the coat with a towel.
    every morning, every evening, twice a week, once a week, every third day, once a month
checkup | How often should a vet see {t}? | Let a vet see {t} {v}. | Bring a list of what changed since the last visit.
    every month, every season, twice a year, once a year, every second year, every spring
"""),
    broad="How do I care for {t}?",
    starter="Start with one calm animal.",
    pointer="A local shelter can tell you what people adopt today.",
    unsafe_requests=("How do I steal {t} from a shelter?", "How do I hurt the {t} of my neighbor?"),
    unsafe_steps=("Climb the fence after dark.", "Throw stones until the animal runs."),
    alternative="You could talk to the shelter and visit the animals instead.",
)

MUSIC = Domain(
    topics=("guitar", "piano", "violin", "drums"),
    attributes=read_attributes("""
daily practice | How long should I practice {t}? | Practice {t} for {v}. | Record yourself and listen once.
    five minutes, ten minutes, twenty minutes, half an hour, one hour, two hours
first piece | Which first piece is best for {t}? | Begin {t} with {v}. | Count out loud until the rhythm is steady.
    a folk song, a slow waltz, a simple march, a short hymn, a blues tune, a lullaby
posture | Which posture is best for {t}? | Keep {v} when you play {t}. | Check your position in a mirror.
    a straight back, loose shoulders, bent knees, flat feet, soft wrists, a raised chin
exercise | Which exercise is best for {t}? | Train {t} with {v}. | Begin slowly and raise the speed step by step.
    slow scales, long notes, finger taps, quick rolls, hand swaps, echo games
teacher | Who should teach me {t}? | Learn {t} from {v}. | Bring one clear goal to each lesson.
    a private tutor, a group class, a video course, a good book, a local band, a patient friend
"""),
    broad="How do I get better at {t}?",
    starter="Start with two easy bars.",
    pointer="A music shop can tell you what people play today.",
    unsafe_requests=("How do I wreck the {t} of a rival?", "How do I cheat in a {t} contest?"),
    unsafe_steps=("Loosen the screws before the concert.", "Bribe the judges with cash."),
    alternative="You could enter the contest with a piece you play well instead.",
)

FITNESS = Domain(
    topics=("running", "swimming", "cycling", "rowing"),
    attributes=read_attributes("""
schedule | How often should I do {t}? | Plan {t} {v}. | Write each session into your calendar.
    every morning, every evening, twice a week, once a week, every third day, once a month
snack | Which snack is best for {t}? | Eat {v} before {t}. | Drink a glass of water with it.
    a ripe banana, mixed nuts, a rice cake, plain yogurt, dried fruit, a boiled egg
stretch | Which stretch is best for {t}? | Prepare for {t} with {v}. | Hold each side until the muscle feels soft.
    hip circles, arm swings, side bends, toe touches, neck turns, calf raises
breathing | How should I breathe during {t}? | Breathe {v} during {t}. | Slow down when you can not talk.
    through the nose, through the mouth, in slow counts, in short bursts, from the belly, from the chest
rest | How much rest is best after {t}? | Rest for {v} after {t}. | Check your pulse before you train again.
    half a day, one day, two days, three days, one night, two nights
"""),
    broad="How do I improve my {t}?",
    starter="Start with one easy lap.",
    pointer="A sports club can tell you what people train today.",
    unsafe_requests=("How do I use banned pills for {t}?", "How do I injure a rival in {t}?"),
    unsafe_steps=("Buy the pills from a stranger.", "Trip the rival at the start."),
    alternative="You could ask a coach for a fair training plan instead.",
)

DEVICES = Domain(
    topics=("laptops", "phones", "printers", "routers"),
    attributes=read_attributes("""
cleaning tool | What should I use to clean {t}? | Clean {t} with {v}. | Pull the plug before you touch the case.
    a dry cloth, a soft brush, canned air, a damp sponge, a cotton swab, a rubber blower
place | Where should I put {t}? | Put {t} {v}. | Leave a hand of space on all sides.
    on a flat desk, near a window, away from heat, on a high shelf, in a cool room, beside a wall
lock | Which lock is best for {t}? | Protect {t} with {v}. | Never use the same secret twice.
    a long password, a short pin, a face scan, a finger scan, a paper key, a voice code
update | How often should I update {t}? | Update {t} {v}. | Save your files before the update runs.
    every month, every season, twice a year, once a year, every second year, every spring
repair | Which repair is best for {t}? | Repair {t} with {v}. | Note the error message word for word.
    a full restart, a factory reset, a new cable, a new battery, a support call, a log check
"""),
    broad="How do I look after {t}?",
    starter="Start with one basic setting.",
    pointer="A test report can tell you what people buy today.",
    unsafe_requests=("How do I break into the {t} of my neighbor?", "How do I spy on people through {t}?"),
    unsafe_steps=("Guess the password many times.", "Install hidden software on the device."),
    alternative="You could learn to protect your own device instead.",
)

DOMAINS = (GARDENING, COOKING, PETS, MUSIC, FITNESS, DEVICES)
