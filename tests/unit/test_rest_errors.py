"""What the companies' own error bodies mean: capacity, quota, funds, auth, gates, invalid and rate limits apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_spec import ABSENT, SAMPLES

from providers import autodl, lambda_cloud, runpod, vast
from providers.errors import (
    AccountGate,
    Ambiguous,
    AuthFailed,
    Invalid,
    NoCapacity,
    NoFunds,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from providers.fields import parsed
from providers.rest import Answer, Judge, Rest

JUDGES: dict[str, Judge] = {
    "autodl": autodl._judge, "runpod": runpod._judge, "lambda": lambda_cloud._judge, "vast": vast._judge,
}  # fmt: skip


def judged(company: str, what: str, status: int, body: Any, headers: dict[str, str] | None = None) -> ProviderError:
    text = json.dumps(body)
    rest = Rest(company, "http://unused", lambda: "key", JUDGES[company], per_second=1, burst=1)
    return rest.problem(Answer(status, parsed(text), text, headers or {}), what)


def rp(detail: str, *errors: str) -> dict[str, Any]:
    return {"title": "No", "status": 0, "detail": detail, "errors": list(errors)}


def lm(code: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": "said", "suggestion": None}}


def vs(error: Any, msg: str = "") -> dict[str, Any]:
    return {"success": False, "error": error, "msg": msg}


def ad(code: str, msg: str) -> dict[str, Any]:
    return {"code": code, "msg": msg, "request_id": "r"}


NO_ASK = "error 404/3603: no_such_ask Instance type by id 1234567 is not available."
CASES: list[tuple[str, str, int, Any, type[ProviderError]]] = [
    # RunPod: one status for a rule and for capacity
    ("runpod", "create", 400, rp("There are no longer any instances available with these specifications."), NoCapacity),
    ("runpod", "create", 400, rp("request could not be processed"), NoCapacity),
    ("runpod", "create", 400, rp("mounts.persistent and mounts.network are mutually exclusive"), Invalid),
    ("runpod", "create", 400, rp("this GPU could not be placed: the data center must have stock"), NoCapacity),
    ("runpod", "create", 400, rp("spend limit reached"), QuotaExceeded),
    ("runpod", "create", 402, rp("insufficient balance"), NoFunds),
    ("runpod", "create", 403, rp("access denied"), NoCapacity),
    ("runpod", "create", 403, rp("this API key lacks the permission"), AuthFailed),
    ("runpod", "list", 403, rp("access denied"), AuthFailed),
    ("runpod", "create", 422, rp("Request validation failed.", "$: additional properties 'x' not allowed"), Invalid),
    ("runpod", "list", 401, rp("missing bearer token"), AuthFailed),
    ("runpod", "list", 429, rp("rate limit exceeded for the minute window"), RateLimited),
    ("runpod", "list", 502, None, Ambiguous),
    ("runpod", "destroy", 409, rp("Pod belongs to a cluster"), Ambiguous),
    # Lambda: codes
    ("lambda", "create", 400, lm("instance-operations/launch/insufficient-capacity"), NoCapacity),
    ("lambda", "create", 400, lm("instance-operations/launch/file-system-in-wrong-region"), Invalid),
    ("lambda", "create", 400, lm("global/quota-exceeded"), QuotaExceeded),
    ("lambda", "create", 400, lm("global/invalid-parameters"), Invalid),
    ("lambda", "create", 403, lm("global/account-inactive"), AccountGate),
    ("lambda", "create", 403, lm("global/invalid-address"), AccountGate),
    ("lambda", "list", 401, lm("global/invalid-api-key"), AuthFailed),
    ("lambda", "list", 403, lm("global/forbidden"), AuthFailed),
    ("lambda", "create", 500, lm("global/internal-error"), Ambiguous),
    ("lambda", "create", 400, lm("provider/internal-unavailable"), Ambiguous),
    ("lambda", "create", 429, {"message": "slow down"}, RateLimited),
    ("lambda", "destroy", 400, lm("global/invalid-parameters"), Ambiguous),
    ("lambda", "create", 400, lm("global/never-seen"), Invalid),
    # Vast: a word, a list of all the words, or a detail
    ("vast", "create", 404, vs("invalid_args", NO_ASK), NoCapacity),
    ("vast", "create", 410, vs("no_such_ask", "error 410/3907: no_such_ask"), NoCapacity),
    ("vast", "create", 400, vs("invalid_price", "bid is too low"), NoCapacity),
    ("vast", "create", 400, vs("no_ssh_key_for_vm"), AccountGate),
    ("vast", "create", 400, vs(["invalid_args", "invalid_price", "no_ssh_key_for_vm"], "Invalid args: 'id'"), Invalid),
    ("vast", "create", 403, vs("invalid_args", "error 403/3586: Offer 1234567 is not your own."), NoCapacity),
    ("vast", "create", 400, vs("invalid_args", "Your account lacks credit; see the billing page."), NoFunds),
    ("vast", "offers", 404, {"error": None, "msg": "Invalid user key"}, AuthFailed),
    ("vast", "get", 401, vs("auth_error", "Invalid user key"), AuthFailed),
    ("vast", "list", 401, {"detail": "Authentication credentials were not provided."}, AuthFailed),
    ("vast", "offers", 400, {"error": "invalid_request", "msg": "Invalid json body"}, Invalid),
    ("vast", "create", 429, {"detail": "API requests too frequent endpoint threshold=4.5"}, RateLimited),
    ("vast", "destroy", 400, vs("invalid_args", "invalid instance_id"), Ambiguous),
    ("vast", "destroy", 429, vs("rate_limit_exceeded", "too frequent endpoint threshold=3.0"), RateLimited),
    # AutoDL: HTTP 200, a code, and for capacity only the text
    ("autodl", "create", 200, ad("TORealName", "未完成实名认证,认证后才可使用"), AccountGate),
    ("autodl", "create", 200, ad("BadRequest", "无当前资源访问权限"), AccountGate),
    ("autodl", "create", 200, ad("InternalError", "当前算力规格暂无库存, 请修改配置或稍等再试"), NoCapacity),
    ("autodl", "create", 200, ad("InternalError", "系统繁忙"), Ambiguous),
    ("autodl", "create", 200, ad("RequestParameterIsWrong", "请求参数错误"), Invalid),
    ("autodl", "create", 200, ad("InternalError", "账户余额不足"), NoFunds),
    ("autodl", "create", 200, ad("BadRequest", "实例数量已达上限"), QuotaExceeded),
    ("autodl", "create", 200, ad("NeverSeen", "未知"), Ambiguous),
    ("autodl", "list", 200, ad("AuthorizeFailed", "token无效"), AuthFailed),
    ("autodl", "list", 200, ad("BadRequest", "请求过于频繁"), RateLimited),
    ("autodl", "get", 200, ad("RequestParameterIsWrong", "请求参数错误"), Invalid),
    ("autodl", "destroy", 200, ad("RequestParameterIsWrong", "请求参数错误"), Ambiguous),
    ("autodl", "destroy", 200, ad("InternalError", "请先关机"), Ambiguous),
    ("autodl", "list", 200, {"data": {"list": []}}, Ambiguous),
    ("autodl", "list", 401, {"detail": "no"}, AuthFailed),
]  # fmt: skip


@pytest.mark.parametrize(("company", "what", "status", "body", "kind"), CASES)
def test_a_body_means_its_class(company: str, what: str, status: int, body: Any, kind: type[ProviderError]) -> None:
    found = judged(company, what, status, body)
    assert type(found) is kind, found
    assert found.provider == company
    assert found.what == what


def test_the_words_of_the_company_reach_the_user() -> None:
    assert "no longer any instances" in str(judged("runpod", "create", 400, CASES[0][3]))
    assert "`gpujob login vast`" in str(judged("vast", "get", 401, vs("auth_error", "Invalid user key")))


def waits(company: str, body: Any, **headers: str) -> float | None:
    found = judged(company, "offers", 429, body, {key.replace("_", "-"): value for key, value in headers.items()})
    assert isinstance(found, RateLimited)
    return found.retry_after_s


def test_how_long_to_wait_is_the_companys_word() -> None:
    assert waits("runpod", rp("rate"), Retry_After="17") == 17.0
    assert waits("runpod", rp("rate"), Retry_After="Wed, 21 Oct 2026 07:28:00 GMT") is None
    assert waits("vast", {"detail": "API requests too frequent endpoint threshold=4.5"}) == 4.5
    assert waits("vast", vs("search_quota_exceeded"), X_RateLimit_Reset="1800") == 1800.0
    assert waits("vast", vs("search_quota_exceeded"), X_RateLimit_Reset="99999999999") == 86_400.0
    assert waits("vast", {"detail": "threshold=..."}) is None


def samples(name: str) -> Any:
    path = SAMPLES / name
    if not path.exists():
        pytest.skip(ABSENT)
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_code_that_lambda_publishes_has_a_class() -> None:
    bodies = samples("lambda_errors.json")
    codes = {body["error"]["code"] for body in bodies.values()}
    known = {code for code in codes if code in lambda_cloud.CODES}
    others = {code for code in codes - known if code.startswith(("instance-operations/", "global/"))}
    assert others == set()
    assert type(judged("lambda", "create", 400, bodies["ApiErrorQuotaExceeded"])) is QuotaExceeded
    assert type(judged("lambda", "create", 400, bodies["ApiErrorInsufficientCapacity"])) is NoCapacity


def test_every_sample_of_an_error_is_a_provider_error_and_none_is_taken_for_success() -> None:
    for status, sample in samples("runpod-v2_errors.json").items():
        for body in sample["examples"].values():
            assert isinstance(judged("runpod", "list", int(status), body), ProviderError)
    for address, answers in samples("vast_errors.json").items():
        verb = "create" if "asks" in address else "destroy" if address.startswith("DELETE") else "list"
        for status, body in answers.items():
            found = judged("vast", verb, int(status), body)
            assert isinstance(found, ProviderError)
            assert isinstance(found, RateLimited) == (status == "429")


def test_every_sample_of_autodl_has_its_class() -> None:
    kinds = {sample["code"]: type(judged("autodl", "create", 200, sample)) for sample in samples("autodl_errors.json")}
    assert kinds == {
        "TORealName": AccountGate,
        "RequestParameterIsWrong": Invalid,
        "RecordNotFoundError": Invalid,
        "InternalError": NoCapacity,
        "BadRequest": AccountGate,
    }
