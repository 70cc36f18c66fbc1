"""What is installed is what was locked, and the audit takes nothing for clean that it could not ask about."""

from __future__ import annotations

import json
import re
from pathlib import Path

from scripts.audit import NPM, read_npm, read_python

ROOT = Path(__file__).parents[2]


def test_every_python_package_is_pinned_with_hashes() -> None:
    text = (ROOT / "requirements" / "dev.lock").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert len(lines) > 50
    for line in lines:
        assert re.match(r"[\w.-]+(\[[\w,-]+\])?==\S+ ", line), line[:80]
        assert "--hash=sha256:" in line, line[:80]


def test_every_npm_package_has_a_checksum_and_no_address() -> None:
    for folder in NPM:
        packages = json.loads((ROOT / folder / "package-lock.json").read_text())["packages"]
        for name, package in packages.items():
            if name:
                assert package["integrity"].startswith("sha512-"), (folder, name)
                assert "resolved" not in package, (folder, name)


def test_packages_that_could_not_be_looked_up_are_not_taken_for_clean() -> None:
    faults, unasked = read_python(
        {
            "dependencies": [
                {"name": "a", "version": "1", "vulns": []},
                {"name": "b", "skip_reason": "Dependency not found on PyPI"},
                {"name": "c", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]},
            ]
        }
    )
    assert (faults, unasked) == ([("c 2", "PYSEC-1", "2.1")], ["b"])
    assert read_npm({"message": "405 Method Not Allowed"}) == ([], ["npm: 405 Method Not Allowed"])
    told = {"vulnerabilities": {"x": {"range": "<1", "via": ["y", {"url": "https://a/GHSA-1", "title": "bad"}]}}}
    assert read_npm(told) == ([("x <1", "GHSA-1", "bad")], [])
