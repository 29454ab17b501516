"""Reads the YAML of a configuration; doubled keys are errors."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml


class YamlTextError(ValueError):
    """The text is no mapping in YAML; the text of the error is a sentence."""


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses doubled keys."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    seen: set[Hashable] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable) or key in seen:
            raise YamlTextError(
                f"line {key_node.start_mark.line + 1}: the key '{key}' is written twice"
            )
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_mapping(text: str) -> dict[Any, Any]:
    """The mapping that the text holds. Raises YamlTextError."""
    try:
        data = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise YamlTextError(f"{line}this is not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise YamlTextError(f"this is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise YamlTextError("the file must hold keys such as version, cluster, models and nodes")
    return data
