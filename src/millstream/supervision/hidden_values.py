"""Hides the secrets of jobs in what they print and report: no log, reason or error shows one.

A secret is the value of a parameter, a Spark setting or a variable of the environment whose name says so. Those that
only the flow file knows are hidden by the process of the job before they are printed: see cli/driver.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from millstream.secrets import forms_of, is_likely_secret, without_passwords
from millstream.supervision.specification import HIDDEN, JobSpecification


class HiddenValues:
    def __init__(self, jobs: Iterable[JobSpecification]) -> None:
        """The secrets of these jobs, and of the environment that they have from the supervisor."""
        named = [*os.environ.items(), *(pair for job in jobs for pair in job.named_values())]
        self._forms = forms_of(value for name, value in named if is_likely_secret(name))

    def text(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        return without_passwords(text)

    def document(self, value: Any) -> Any:
        """A document without secrets. Values are replaced one by one, so it stays JSON whatever a secret looks like."""
        if isinstance(value, dict):
            return {self.text(name): self.document(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self.document(each) for each in value]
        if isinstance(value, str):
            return self.text(value)
        return HIDDEN if value is not None and str(value) in self._forms else value
