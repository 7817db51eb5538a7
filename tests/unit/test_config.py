"""The config: read as meant or refused with its place; who wins; the limits are written at first use."""

from __future__ import annotations

import stat
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from jobspecs.problems import SpecErrors
from jobspecs.units import Money
from orchestrator.config import (
    BUILT_IN,
    CONFIG,
    CONFIG_VARIABLES,
    ENVIRONMENT,
    FLAG,
    SPEC,
    SPEC_VARIABLES,
    Config,
    Effective,
    Limits,
    Rate,
    load_config,
    resolve,
    write_defaults,
)
from orchestrator.home import Home
from orchestrator.objects.settings import StoreSettings
from orchestrator.targets import Target


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.delenv("GPUJOB_CONFIG", raising=False)
    return Home(state=tmp_path / "state", config=tmp_path / "config").make()


def read(home: Home, text: str, env: dict[str, str] | None = None) -> Config:
    home.config_file.write_text(text, encoding="utf-8")
    return load_config(home, env or {})


def problems(home: Home, text: str) -> list[str]:
    with pytest.raises(SpecErrors) as caught:
        read(home, text)
    return [str(problem).removeprefix(f"{home.config_file}:") for problem in caught.value.problems]


def test_no_file_is_fine(home: Home) -> None:
    config = load_config(home, {})
    assert config == Config(path=home.config_file)
    assert config.limits == Limits(Money(Decimal("50.00")), Money(Decimal("300.00")), 8)
    assert (config.currency, config.owner, config.origins) == ("USD", "", {})


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n  # and another\n", "limits:\nproviders:\n"])
def test_a_file_that_says_nothing_is_fine(home: Home, text: str) -> None:
    assert read(home, text).limits == Limits()


FULL = """
defaults: {ttl: 8h, retry: {max: 2}}
providers:
  runpod: {regions: [EU, US], secure: yes}
  local:
hosts:
  lab: {ssh: "ssh -p 2222 root@10.0.0.5"}
stores: {lab: s3://bucket/prefix}
limits: {per_job: 20 EUR, machines: none}
notify: {me: https://example.org/hook}
currency: EUR
rates: {CNY: {rate: 0.125, as_of: 2026-10-01}, USD: {rate: 0.5, as_of: 2026-10-02}}
owner: alice-2
"""


def test_every_key_is_read(home: Home) -> None:
    config = read(home, FULL)
    assert config.defaults == {"ttl": "8h", "retry": {"max": "2"}}
    own = {"hosts": config.hosts}  # a machine of one's own is rented by a provider like any other
    assert config.providers == {"runpod": {"regions": ["EU", "US"], "secure": "yes"}, "local": {}, "ssh": own}
    assert config.hosts == {"lab": {"ssh": "ssh -p 2222 root@10.0.0.5"}}
    assert config.stores == {"lab": StoreSettings("lab", "s3://bucket/prefix")}
    assert config.limits == Limits(Money(Decimal("20.00"), "EUR"), Money(Decimal("300.00")), None)
    assert config.notify == {"me": Target(url="https://example.org/hook")}
    assert (config.currency, config.owner) == ("EUR", "alice-2")
    assert config.rates["CNY"] == Rate(Decimal("0.125"), "2026-10-01")
    assert set(config.origins.values()) == {"config"}


def test_rates_convert_through_the_configs_currency(home: Home) -> None:
    config = read(home, FULL)
    assert config.rates_to("EUR") == {"CNY": Decimal("0.125"), "USD": Decimal("0.5")}
    assert config.rates_to("USD") == {"EUR": Decimal(2), "CNY": Decimal("0.25")}
    assert config.rates_to("JPY") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("limit: {machines: 3}", "1:1: limit: is no key of the config (did you mean limits?)"),
        ("owner: me\nlimits:\n  per_jobs: 3", "3:3: limits.per_jobs: is no key of the config (did you mean per_job?)"),
        ("zzz: 1", "1:1: zzz: is no key of the config (the keys here are defaults, providers, hosts"),
        ("defaults:\n  tll: 3h", "2:3: defaults.tll: is no key of the config (did you mean ttl?)"),
        ("limits: {machines: many}", "1:20: limits.machines: expected a whole number, got 'many'"),
        ("limits: {machines: -1}", "1:20: limits.machines: must be 0 or more, got -1"),
        ("limits: {per_job: 12:30}", "1:19: limits.per_job: "),
        ("limits: 5", "1:1: limits: must have `name: value` lines below it"),
        ("currency: euro", "1:11: currency: 'euro' is not a currency"),
        ("owner: Al Ice", "1:8: owner: 'Al Ice' is not an owner's name"),
        ("owner: [a]", "1:8: owner: must be one word or number"),
        ("stores: {lab: bucket}", "1:15: stores.lab: must be a URI"),
        ("providers: {runpod: 3}", "1:13: providers.runpod: must have `name: value` lines"),
        ("rates: {CNY: 0.14}", "1:9: rates.CNY: needs a rate and its day"),
        ("rates: {CNY: {rate: 0, as_of: 2026-10-01}}", "1:21: rates.CNY.rate: a rate is more than 0"),
        ("rates: {CNY: {rate: 1, as_of: today}}", "1:31: rates.CNY.as_of: 'today' is not a day"),
        ("owner: a\nowner: b", "2:1: owner: is here twice"),
        ("- a list", "1:1: is a list"),
        ("owner: [", "1:9: is not YAML"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_its_place(home: Home, text: str, said: str) -> None:
    found = problems(home, text)
    assert found[0].startswith(said), found


def test_all_problems_are_said_at_once(home: Home) -> None:
    assert len(problems(home, "ownr: a\ncurrency: x\nlimits: {machines: z, per_month: q}")) == 4


def test_a_secret_in_the_config_is_refused_and_not_repeated(home: Home) -> None:
    secret = "hf_" + "a1B2" * 8
    found = problems(home, f"providers:\n  hub: {{token: {secret}}}\n")
    assert "2:3: providers.hub.token: looks like a secret" in found[0]
    assert "gpujob login hub" in found[0]
    assert secret not in found[0]


def test_the_environment_wins_over_the_file(home: Home) -> None:
    env = {
        "GPUJOB_OWNER": "ci",
        "GPUJOB_CURRENCY": "",
        "GPUJOB_TTL": "2h",
        "GPUJOB_PROVIDERS": "runpod,vast",
        "GPUJOB_REGIONS": "[EU]",
    }
    config = read(home, "owner: alice\ncurrency: EUR\n", env)
    assert (config.owner, config.currency) == ("ci", "EUR")
    assert config.origins == {"owner": "environment", "currency": "config"}
    assert dict(config.environment) == {"ttl": "2h", "providers": "[runpod,vast]", "regions": "[EU]"}


def test_a_bad_variable_is_named(home: Home) -> None:
    with pytest.raises(SpecErrors, match="GPUJOB_CURRENCY: 'euro' is not a currency"):
        load_config(home, {"GPUJOB_CURRENCY": "euro"})


def test_variables_set_keys_that_exist() -> None:
    from jobspecs.schema import JobSpec

    assert set(SPEC_VARIABLES.values()) <= set(JobSpec.model_fields)
    assert set(CONFIG_VARIABLES.values()) <= set(Config.__dataclass_fields__)


def test_the_strongest_layer_that_sets_a_key_holds() -> None:
    found = resolve(
        [
            (FLAG, {"budget": "5 USD", "ttl": None}),
            (ENVIRONMENT, {"spot": "false"}),
            (SPEC, {"ttl": "4h", "spot": "true", "grace": None}),
            (CONFIG, {"ttl": "8h", "grace": "1m", "budget": "1 USD"}),
            (BUILT_IN, {"ttl": "12h", "wait": "1h"}),
        ]
    )
    assert found == {
        "budget": Effective("5 USD", "flag"),
        "spot": Effective("false", "environment"),
        "ttl": Effective("4h", "spec"),
        "grace": Effective("1m", "config"),  # B022: what only the config sets does hold
        "wait": Effective("1h", "built-in"),
    }


def test_a_value_of_the_config_beats_the_built_in_one() -> None:  # B152
    found = resolve([(SPEC, {}), (CONFIG, {"ttl": "1h"}), (BUILT_IN, {"ttl": "5m"})])
    assert found["ttl"] == Effective("1h", "config")


def test_limits_are_written_where_the_user_sees_them(home: Home) -> None:
    assert write_defaults(home) is True
    text = home.config_file.read_text()
    assert "per_job: 50.00 USD" in text
    assert stat.S_IMODE(home.config_file.stat().st_mode) == 0o600
    assert load_config(home, {}).limits == Limits()
    assert load_config(home, {}).origins == {"limits": "config"}
    assert write_defaults(home) is False
    assert home.config_file.read_text() == text


def test_limits_are_added_to_a_file_without_changing_a_byte_of_it(home: Home) -> None:
    home.config_file.write_text("# mine\nowner: alice", encoding="utf-8")
    assert write_defaults(home) is True
    assert home.config_file.read_text().startswith("# mine\nowner: alice\n")
    assert (load_config(home, {}).owner, load_config(home, {}).limits) == ("alice", Limits())


def test_a_file_of_one_brace_or_with_own_limits_stays_as_it_is(home: Home) -> None:
    for text in ("{owner: alice}\n", "limits: {machines: 2}\n"):
        home.config_file.write_text(text)
        assert write_defaults(home) is False
        assert home.config_file.read_text() == text
        assert sorted(file.name for file in home.config.iterdir()) == ["config.yaml"]


def test_a_config_without_defaults_costs_no_pydantic(home: Home) -> None:
    home.config_file.write_text("owner: alice\n")
    code = (
        "import sys, pathlib; from orchestrator.config import load_config; from orchestrator.home import Home;"
        "where = [pathlib.Path(one) for one in sys.argv[1:]]; load_config(Home(*where), {});"
        "print('pydantic' in sys.modules, 'yaml' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(home.state), str(home.config)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]
