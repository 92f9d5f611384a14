"""Choice of the values of trials by Optuna, and their journal, from which an interrupted search continues."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from rlhf_lab.config.overrides import literal
from rlhf_lab.config.search_space import Dimension, SearchChoices, SearchGoal
from rlhf_lab.core.errors import OPTIONAL, ConfigError, MissingDependency
from rlhf_lab.studies.frame import COMPLETED
from rlhf_lab.studies.search_trials import RUNNING, SearchTrial

JOURNAL = "optuna.journal"
"""File of Optuna's journal storage in the directory of a search."""
RANDOM_TRIALS = 5
"""Number of random trials before the first one that depends on earlier results. Optuna's default of 10 would leave most
searches of 10 to 20 trials to chance."""


class OptunaTrials:
    """Trials of one search in Optuna's journal.

    The sampler gets a new seed for every trial, which depends on the trial's number only: a search that was interrupted
    chooses the same values as one that was not.

    Args:
        space: searched key → its values.
        seed: seed of the command.
    """

    def __init__(self, directory: Path, space: Mapping[str, Dimension], goal: SearchGoal, seed: int):
        try:
            import optuna
            from optuna.storages.journal import JournalFileBackend
        except ImportError as error:
            raise MissingDependency(*OPTIONAL["optuna"]) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._space = space
        self._seed = seed
        backend = JournalFileBackend(str(directory / JOURNAL))
        self._study = optuna.create_study(
            study_name="search",
            storage=optuna.storages.JournalStorage(backend),
            direction="maximize" if goal.direction == "higher" else "minimize",
            load_if_exists=True,
        )
        self._check_same_search(directory, goal)

    def _check_same_search(self, directory: Path, goal: SearchGoal) -> None:
        described = json.dumps([goal.metric, goal.direction, {key: repr(value) for key, value in self._space.items()}])
        stored = self._study.user_attrs.get("search", described)
        if stored != described:
            raise ConfigError(
                f"{directory}/{JOURNAL} has trials with other ranges or another goal; delete the directory, or set "
                "outputs=DIR for the new search"
            )
        self._study.set_user_attr("search", described)

    def next(self) -> SearchTrial:
        """Return the trial to run: one that was interrupted, else a new one."""
        states = self._optuna.trial.TrialState
        interrupted = self._study.get_trials(deepcopy=False, states=(states.RUNNING,))
        if interrupted:
            return self._read(interrupted[0])
        number = len(self._study.get_trials(deepcopy=False))
        # Hashed, because the first values of generators with successive seeds are close to each other.
        seed = int(sha256(f"{self._seed} {number}".encode()).hexdigest()[:8], 16)
        self._study.sampler = self._optuna.samplers.TPESampler(n_startup_trials=RANDOM_TRIALS, seed=seed)
        trial = self._study.ask({key: self._distribution(dimension) for key, dimension in self._space.items()})
        return self._read(self._study.get_trials(deepcopy=False)[trial.number])

    def finish(self, trial: SearchTrial) -> None:
        stored = self._study.get_trials(deepcopy=False)[trial.index]
        handle = self._optuna.trial.Trial(self._study, stored._trial_id)
        for name in ("status", "run", "error"):
            handle.set_user_attr(name, getattr(trial, name))
        state = self._optuna.trial.TrialState.FAIL if trial.score is None else None
        self._study.tell(trial.index, trial.score, state=state)

    def trials(self) -> tuple[SearchTrial, ...]:
        return tuple(self._read(stored) for stored in self._study.get_trials(deepcopy=False))

    def _distribution(self, dimension: Dimension) -> Any:
        distributions = self._optuna.distributions
        if isinstance(dimension, SearchChoices):
            # As text, because Optuna has no choices that are lists or mappings.
            return distributions.CategoricalDistribution([literal(choice) for choice in dimension.choices])
        kind = distributions.IntDistribution if dimension.whole else distributions.FloatDistribution
        return kind(dimension.low, dimension.high, log=dimension.log)

    def _read(self, stored: Any) -> SearchTrial:
        values = {}
        for key, value in stored.params.items():
            dimension = self._space[key]
            if isinstance(dimension, SearchChoices):
                texts = [literal(choice) for choice in dimension.choices]
                values[key] = dimension.choices[texts.index(value)]
            else:
                values[key] = dimension.rounded(value)
        attributes = stored.user_attrs
        status = RUNNING if stored.state == self._optuna.trial.TrialState.RUNNING else attributes["status"]
        score = stored.value if status == COMPLETED else None
        return SearchTrial(stored.number, values, status, score, attributes.get("run"), attributes.get("error"))
