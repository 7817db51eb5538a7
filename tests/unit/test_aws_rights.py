"""The rights that the page about AWS asks for are those that the adapter uses, no more and no less."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SERVICES = {"get_parameter": "ssm", "get_products": "pricing"}
# Asked of AWS on behalf of a launch, never called.
IMPLIED = {"ec2:CreateTags", "iam:CreateServiceLinkedRole"}


def test_the_page_names_every_call_of_the_adapter() -> None:
    page = (ROOT / "docs/how-to/use-aws.md").read_text()
    policy = json.loads(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0])
    allowed = {
        action
        for statement in policy["Statement"]
        for action in ([statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"])
    }
    source = "".join(path.read_text() for path in sorted((ROOT / "providers").glob("aws*.py")))
    verbs = "describe|create|delete|import|authorize|run|terminate|release|get"
    called = set(re.findall(rf'"((?:{verbs})_[a-z_]+)"', source))
    assert {"run_instances", "describe_volumes", "get_products"} <= called
    needed = {f"{SERVICES.get(name, 'ec2')}:{''.join(map(str.title, name.split('_')))}" for name in called}
    assert allowed == needed | IMPLIED
