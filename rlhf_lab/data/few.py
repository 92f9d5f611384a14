"""A few rows of a data source, read or generated within a second, for checks before a run."""

from __future__ import annotations

from dataclasses import replace

from rlhf_lab.config import registry
from rlhf_lab.config.groups import DataSource
from rlhf_lab.core.types import Corpus
from rlhf_lab.data.file_settings import FileSettings, ForeignEnvironment
from rlhf_lab.data.reading import local_files
from rlhf_lab.data.settings import Mix


def few_rows(settings: DataSource) -> Corpus | None:
    """Return the corpus of a source at its smallest size, or None if it needs a network or starts a user's environment.

    Raises DataError, ConfigError or MissingDependency if something is wrong with the first rows.
    """
    parts = list(settings.sources_by_name().values()) or [settings]
    if not all(map(_is_at_hand, parts)):
        return None
    corpus: Corpus = registry.build("data", _at_its_smallest(settings))
    return corpus


def _is_at_hand(settings: DataSource) -> bool:
    if isinstance(settings, ForeignEnvironment):
        # starting somebody's environment may have side effects and take minutes
        return False
    sources = (settings.path, settings.test_path) if isinstance(settings, FileSettings) else ()
    # None means a hub data set, which needs a network
    return all(local_files(source) is not None for source in sources if source)


def _at_its_smallest(settings: DataSource) -> DataSource:
    """Return the settings with the row counts of `size=smoke` for pretrained models, in every source of a mix."""
    if isinstance(settings, Mix):
        sources = {
            name: {**settings.sources[name], **part.by_size.smoke_real}
            for name, part in settings.sources_by_name().items()
        }
        settings = replace(settings, sources=sources)
    return replace(settings, **settings.by_size.smoke_real)
