"""The fields that ask a model to think, as variables of its chat template."""

from __future__ import annotations

from typing import TypeVar

from paceline.core import InvalidRequest
from paceline.core.errors import OwnWords, shown
from paceline.engine.tool_formats import reasoning_of
from paceline.models.chat_template import variables_of
from paceline.server.fields import JsonObject

SWITCHES = ("enable_thinking", "thinking")  # names that templates have for the same variable
EFFORT = "reasoning_effort"
USUAL_EFFORT = "medium"  # OpenAI's default
Value = TypeVar("Value")


class ThinkingControl:
    """Reads from a chat template what a request may say about thinking."""

    def __init__(self, template: str) -> None:
        read = variables_of(template)
        self._switch = next((name for name in SWITCHES if name in read), None)
        self._reads_effort = EFFORT in read
        self._thinks = self._switch is not None or reasoning_of(template) is not None

    def variables(self, stated: JsonObject, enable: bool | None, effort: str | None) -> JsonObject:
        """Return the template's variables: `stated`, and what the two fields ask for.

        A value that the template does not read passes where it asks for what the model does anyway.
        Raises InvalidRequest, naming the field, for any other.
        """
        variables = dict(stated)
        field = "enable_thinking"
        for name in SWITCHES:
            if isinstance(asked := variables.get(name), bool) and name != self._switch:
                del variables[name]
                field = f"chat_template_kwargs.{name}"
                enable = self._agreed(field, asked, enable)
        if effort is not None and not self._reads_effort:
            enable = self._effort_as_switch(effort, enable)
        elif effort is not None:
            variables[EFFORT] = self._agreed(EFFORT, effort, variables.get(EFFORT))
        if enable is None:
            return variables
        if self._switch is not None:
            variables[self._switch] = self._agreed(field, enable, variables.get(self._switch))
        elif enable != self._thinks:
            verb = "always" if self._thinks else "never"
            expected = f"{str(self._thinks).lower()}, or nothing: this model {verb} thinks"
            raise InvalidRequest(field, enable, OwnWords(expected))
        return variables

    def _effort_as_switch(self, effort: str, enable: bool | None) -> bool | None:
        """Return whether to think, by an effort that the template does not read."""
        if effort == "none" and (self._switch is not None or not self._thinks):
            return self._agreed(EFFORT, False, enable)
        if effort == USUAL_EFFORT and self._thinks:
            return enable
        usual = USUAL_EFFORT if self._thinks else "none"
        choices = [f"{usual!r}", "'none'"] if self._switch is not None else [f"{usual!r}"]
        expected = " or ".join([*choices, "nothing: the model's chat template reads no effort"])
        raise InvalidRequest(EFFORT, effort, OwnWords(expected))

    @staticmethod
    def _agreed(field: str, value: Value, other: object) -> Value:
        if other is not None and other != value:
            expected = f"the same as elsewhere in the request, where it is {shown(other)}"
            raise InvalidRequest(field, value, expected)
        return value
