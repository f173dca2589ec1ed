"""YAML of one document, in which no key stands twice."""

from __future__ import annotations

from functools import cache
from typing import Any

from paceline.core import InvalidRequest
from paceline.dataset.extra import yaml_module


def parse_yaml(text: str, name: str, field: str) -> Any:
    """Plain data only. Raises InvalidRequest (`field`) that names the file and the place."""
    yaml = yaml_module()
    try:
        return yaml.load(text, _loader())
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        expected = "valid YAML: " + " ".join(str(error).split())
        raise InvalidRequest(field, name, expected) from error


@cache
def _loader() -> Any:
    yaml = yaml_module()

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """PyYAML takes the last of two equal keys, and says nothing."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for index, key in enumerate(keys):
                if key in keys[:index]:
                    raise yaml.YAMLError(f"{key!r} stands twice, {node.start_mark}")
            return super().construct_mapping(node, deep)

    return Loader
