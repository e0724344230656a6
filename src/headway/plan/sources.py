"""The training sources of a run file: their names and weights, in the order in which the token store numbers them."""

from __future__ import annotations

from headway.config.schema import DataConfig, SourceConfig

_LONGEST_NAME = 60


def training_sources(data: DataConfig) -> tuple[SourceConfig, ...]:
    return (data.train, *data.more)


def source_names(data: DataConfig) -> tuple[str, ...]:
    """A name for each of several sources, no two alike; () for one."""
    sources = training_sources(data)
    if len(sources) == 1:
        return ()
    names = [", ".join(source.paths)[:_LONGEST_NAME] or source.kind for source in sources]
    return tuple(f"{name} ({n + 1})" if names.count(name) > 1 else name for n, name in enumerate(names))


def source_weights(data: DataConfig) -> tuple[float, ...]:
    """Shares that sum to 1; () where the sources have no weights."""
    weights = [source.weight for source in training_sources(data)]
    given = [weight for weight in weights if weight is not None]
    if len(weights) == 1 or len(given) < len(weights):
        return ()
    return tuple(weight / sum(given) for weight in given)
