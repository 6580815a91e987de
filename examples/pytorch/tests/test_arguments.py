"""Wrong arguments are rejected by name, and reports and documentation are complete."""

import inspect
import pydoc
import re

import pytest
import torch
from conftest import CLASSES, SHORT, assert_same_bits, contents, copies_of, make_parameters, parameters_of, train

import slamb.torch as st
from slamb import _native

IN_UNIT = r"\[0, 1\)"
ERRORS = (ValueError, TypeError)

# Settings, and a pattern of the message. Two for each: a wrong value and a wrong type.
WRONG_OF_ALL = [
    ({"lr": -1.0}, r"(lr|rate).*-1.*(>=? ?0|\[0)"),
    ({"lr": float("nan")}, r"(lr|rate).*nan"),
    ({"lr": float("inf")}, r"(lr|rate).*inf"),
    ({"lr": "x"}, r"\b(lr|rate)\b"),
    ({"lr": None}, r"\b(lr|rate)\b"),
    ({"betas": (0.9, 1.0)}, rf"beta.*\b1.*{IN_UNIT}"),
    ({"betas": (-0.1, 0.9)}, rf"beta.*-0\.1.*{IN_UNIT}"),
    ({"betas": (0.9, float("nan"))}, rf"beta.*nan.*{IN_UNIT}"),
    ({"betas": 0.9}, r"betas"),
    ({"betas": (0.9,)}, r"betas"),
    ({"betas": (0.9, 0.99, 0.999)}, r"betas"),
    ({"betas": ("x", "y")}, r"beta"),
    ({"betas": None}, r"betas"),
    ({"beta1": 2.0}, rf"beta1.*2.*{IN_UNIT}"),
    ({"beta2": "x"}, r"beta2"),
    ({"eps": -1.0}, r"eps.*-1.*[>\[]"),
    ({"eps": 0.0}, r"eps.*0.*[>\[]"),
    ({"eps": float("nan")}, r"eps.*nan"),
    ({"eps": "x"}, r"eps"),
    ({"epsilon": -1.0}, r"epsilon.*-1"),
    ({"weight_decay": -1.0}, r"weight_decay.*-1.*\[0"),
    ({"weight_decay": float("inf")}, r"weight_decay.*inf"),
    ({"weight_decay": "x"}, r"weight_decay"),
    ({"weight_decay": None}, r"weight_decay"),
    ({"compressor": "zip"}, r"compressor = 'zip'.*takes '"),
    ({"compressor": 5}, r"compressor"),
    ({"compressor": None}, r"compressor"),
    ({"process_group": 5}, r"process_group"),
    ({"exchange": "no"}, r"exchange.*True or False"),
    ({"rounding": "up"}, r"rounding must be 'nearest' or 'stochastic', not 'up'"),
    ({"rounding": None}, r"rounding must be 'nearest' or 'stochastic', not None"),
    ({"rounding": ["nearest"]}, r"rounding must be"),
    ({"moments": "4-bit"}, r"moments = '4-bit'.*takes '"),
    ({"moments": 8}, r"moments"),
    ({"threads": 0}, r"threads = 0, but it must be an integer >= 1"),
    ({"threads": -3}, r"threads = -3, but it must be an integer >= 1"),
    ({"threads": 2.0}, r"threads = .*must be an integer"),
    ({"threads": "2"}, r"threads = .*must be an integer"),
    ({"threads": True}, r"threads = .*must be an integer"),
    ({"threads": 5000}, r"threads.*5000.*4096"),
    ({"max_gradient_norm": 0.0}, r"max_gradient_norm = 0.*> 0"),
    ({"max_gradient_norm": "x"}, r"max_gradient_norm must be a number"),
    ({"max_grad_norm": -1.0}, r"max_grad(ient)?_norm = -1.*> 0"),
    ({"compare_every": -1}, r"compare_every = -1.*>= 0"),
    ({"compare_every": 1.5}, r"compare_every must be an integer"),
    ({"check_gradients": "no"}, r"check_gradients.*True or False"),
    ({"rounding_seed": -1}, r"rounding_seed.*-1.*>= 0"),
    ({"rounding_seed": 1.5}, r"rounding_seed = .*integer"),
    ({"rounding_seed": "x"}, r"rounding_seed = .*integer"),
    ({"max_gradient_norm": [1.0]}, r"max_gradient_norm"),
    ({"max_gradient_norm": {}}, r"max_gradient_norm"),
    ({"no_such_setting": 1}, r"no setting 'no_such_setting'; it has beta1"),
]
WRONG_OF_ONE = [
    ("adamw", {"skip_non_finite": 1}, r"skip_non_finite must be True or False"),
    ("adamw", {"bias_correction": "x"}, r"bias_correction must be True or False"),
    ("adamw", {"compressor": "random_k", "k": 0.0}, r"k = 0.*\[1/65535, 1\]"),
    ("adamw", {"compressor": "random_k", "k": 1.5}, r"k = 1.5.*\[1/65535, 1\]"),
    ("adamw", {"compressor": "random_k", "block": 0}, r"block = 0.*\[1, 2\^20\]"),
    ("adamw", {"compressor": "random_k", "block": 2.5}, r"block must be an integer"),
    ("adamw", {"compressor": "random_k", "seed": -1}, r"seed = -1.*>= 0"),
    ("adamw", {"compressor": "top_k", "k": 2}, r"k = 2.*\(0, 1\]"),
    ("adamw", {"compressor": "top_k", "k": True}, r"k must be a number"),
    ("adamw", {"compressor": "top_k", "k": "x"}, r"k must be a number"),
    ("adamw", {"compressor": "int8", "quantizer_block": 17}, r"block = 17.*\[16, 1024\]"),
    ("adamw", {"compressor": "int8", "quantizer_block": "x"}, r"quantizer_block must be an integer"),
    ("adamw", {"compressor": "sign", "scales": "x"}, r"scales must be 'fused' or 'per_tensor', not 'x'"),
    ("adamw", {"compressor": "sign", "scales": 3}, r"scales must be 'fused' or 'per_tensor'"),
    ("adamw", {"compressor": "sign", "moments": "8-bit"}, r"moments = '8-bit'.*takes 'float32'"),
    ("adamw", {"compressor": "sign", "compress_single_rank": 1}, r"compress_single_rank must be True or False"),
    ("lamb", {"trust_ratio_lower": -1.0}, r"lower = -1.*\[0"),
    ("lamb", {"trust_ratio_lower": "x"}, r"trust_ratio_lower must be a number"),
    ("lamb", {"trust_ratio_lower": 5.0, "trust_ratio_upper": 1.0}, r"upper = 1.*at least lower = 5"),
    ("lamb", {"adapt_without_weight_decay": 0}, r"adapt_without_weight_decay must be True or False"),
    ("slamb", {"k": 0.0}, r"k = 0.*\[1/65535, 1\]"),
    ("slamb", {"k": "x"}, r"k must be a number"),
    ("slamb", {"beta3": 1.5}, r"beta3 = 1.5.*\[0, 1\]"),
    ("slamb", {"local_steps": -1}, r"local_steps = -1.*>= 0"),
    ("slamb", {"local_steps": 1.5}, r"local_steps must be an integer"),
    ("slamb", {"dense_below": -1}, r"dense_below = -1.*>= 0"),
    ("slamb", {"clip_locally": 3}, r"clip_locally must be True or False"),
    ("slamb", {"trust_ratio_upper": "x"}, r"trust_ratio_upper must be a number"),
    ("slamb", {"parameter_sync": "int8"}, r"parameter_sync must be 'average' or 'four_levels' or 'int4' or 'sign', not 'int8'"),
    ("slamb", {"trust_ratio": 1}, r"trust_ratio must be 'rescaled' or 'mean_step', a text"),
    ("slamb", {"trust_ratio": "mean_step"}, r"trust_ratio = 'mean_step' needs parameter_sync = 'four_levels', 'int4' or 'sign'"),
    (
        "slamb",
        {"parameter_sync": "sign", "trust_ratio": "rescaled"},
        r"trust_ratio = 'rescaled' needs parameter_sync = 'average' or 'four_levels'",
    ),
    ("slamb", {"compressor": "top_k", "parameter_sync": "four_levels"}, r"parameter_sync other.* need.*'random_k\+int8'"),
    ("slamb", {"compressor": "top_k", "trust_ratio": "mean_step"}, r"trust_ratio = 'mean_step', need.*'random_k\+int8'"),
    ("slamb", {"compressor": "top_k", "parameter_sync": "int8"}, r"parameter_sync must be 'average' or.*, not 'int8'"),
    ("slamb", {"moments": "8-bit", "parameter_sync": "four_levels"}, r"parameter_sync other.* need.*moments = 'float32'"),
    ("slamb", {"compressor": "top_k", "moments": "8-bit"}, r"moments = '8-bit'.*takes 'float32'"),
    *(
        (
            "slamb",
            {"update_bound": wrong},
            rf"update_bound = {re.escape(repr(wrong))}, but it must be 'adam', a number > 0, or None",
        )
        for wrong in (0, 0.0, -1.5, float("nan"), -float("inf"), True, False, "off", "Adam", "3", [1.0], {}, (1.0, 2.0))
    ),
    ("slamb", {"update_bound": 1e-50}, r"update_bound = 1e-50, but it must be in \[1.2e-38"),
    ("one_bit_adam", {"update_bound": 0}, r"update_bound = 0, but it must be 'adam', a number > 0, or None"),
    ("one_bit_lamb", {"update_bound": "none"}, r"update_bound = 'none', but it must be 'adam', a number > 0, or None"),
    ("zero_one_adam", {"update_bound": -1}, r"update_bound = -1, but it must be 'adam', a number > 0, or None"),
    ("adamw", {"update_bound": "adam"}, r"has no setting 'update_bound'; it has"),
    ("lamb", {"update_bound": 7.3}, r"has no setting 'update_bound'; it has"),
    ("one_bit_adam", {"warm_up_steps": -1}, r"warm_up_steps = -1.*>= 0"),
    ("one_bit_adam", {"warm_up_steps": 2.5}, r"warm_up_steps must be an integer"),
    ("one_bit_adam", {"warm_up_threshold": 2.0}, r"threshold = 2.*\(0, 1\]"),
    ("one_bit_adam", {"warm_up_threshold": 0.0}, r"threshold = 0.*\(0, 1\]"),
    ("one_bit_adam", {"warm_up_threshold": "x"}, r"warm_up_threshold must be a number"),
    ("one_bit_adam", {"warm_up_threshold": 0.9, "warm_up_interval": -1}, r"warm_up_interval = -1.*>= 0"),
    ("one_bit_adam", {"warm_up_threshold": 0.9, "warm_up_least_steps": 0.5}, r"warm_up_least_steps must be an integer"),
    ("one_bit_adam", {"freeze_step": -1}, r"(freeze_step|warm_up_steps) = -1.*>= 0"),
    ("one_bit_adam", {"zero_aware": 1}, r"zero_aware must be True or False"),
    ("one_bit_lamb", {"warm_up_steps": "x"}, r"warm_up_steps must be an integer"),
    ("zero_one_adam", {"variance_freeze_step": -1}, r"variance_freeze_step = -1.*>= 0"),
    ("zero_one_adam", {"variance_update_scaler": 0}, r"update_scaler = 0.*>= 1"),
    ("zero_one_adam", {"local_interval_scaler": 0}, r"scaler = 0.*>= 1"),
    ("zero_one_adam", {"local_interval_clipper": 0}, r"clipper = 0.*>= 1"),
    ("zero_one_adam", {"local_interval_clipper": 1.5}, r"local_interval_clipper must be an integer"),
]
BOTH_NAMES = [
    ("adamw", {"max_grad_norm": 1.0, "max_gradient_norm": 1.0}),
    ("adamw", {"eps": 1e-3, "epsilon": 1e-4}),
    ("adamw", {"betas": (0.8, 0.9), "beta1": 0.7}),
    ("adamw", {"betas": (0.8, 0.9), "beta2": 0.7}),
    ("one_bit_adam", {"warm_up_steps": 5, "freeze_step": 6}),
    ("one_bit_lamb", {"warm_up_steps": 5, "freeze_step": 6}),
    ("zero_one_adam", {"variance_freeze_step": 7, "var_freeze_step": 8}),
    ("zero_one_adam", {"variance_update_scaler": 7, "var_update_scaler": 8}),
    ("zero_one_adam", {"local_interval_scaler": 7, "local_step_scaler": 8}),
    ("zero_one_adam", {"local_interval_clipper": 7, "local_step_clipper": 8}),
]


def text_of(settings):
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())


def check_rejected(name, settings, text):
    """Requires the construction to fail with a message that matches, and to leave nothing behind."""
    p = make_parameters()
    train(CLASSES[name](p), 1, 1)  # gradients exist
    before = contents((p, [one.grad for one in p]))
    with pytest.raises(ERRORS, match=text) as error:
        CLASSES[name](p, **settings)
    message = str(error.value)
    assert "incompatible function arguments" not in message
    assert contents((p, [one.grad for one in p])) == before
    q = copies_of(p)
    train(CLASSES[name](p), 1, 2)
    train(CLASSES[name](q), 1, 2)
    assert_same_bits(p, q)


@pytest.mark.parametrize("settings, text", WRONG_OF_ALL, ids=[text_of(settings) for settings, _ in WRONG_OF_ALL])
def test_a_wrong_argument_is_rejected_by_its_name_with_what_would_be_right(settings, text):
    check_rejected("adamw", settings, text)


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "adamw"])
@pytest.mark.parametrize("settings, text", WRONG_OF_ALL[::7], ids=[text_of(one) for one, _ in WRONG_OF_ALL[::7]])
def test_a_wrong_argument_is_rejected_by_every_class(name, settings, text):
    check_rejected(name, settings, text)


@pytest.mark.parametrize(
    "name, settings, text", WRONG_OF_ONE, ids=[f"{name}: {text_of(settings)}" for name, settings, _ in WRONG_OF_ONE]
)
def test_a_wrong_argument_of_one_class_is_rejected_by_its_name_with_what_would_be_right(name, settings, text):
    check_rejected(name, settings, text)


@pytest.mark.parametrize("name, settings", BOTH_NAMES, ids=[text_of(settings) for _, settings in BOTH_NAMES])
def test_two_names_of_one_setting_are_rejected_together(name, settings):
    check_rejected(name, settings, f"{'.*'.join(settings)}|{'.*'.join(reversed(list(settings)))}")


@pytest.mark.parametrize("name", CLASSES)
def test_an_unknown_setting_is_rejected_with_a_list_of_those_that_exist(name):
    with pytest.raises(ValueError, match=f"{name}.* has no setting 'no_such_setting'; it has") as error:
        CLASSES[name](make_parameters(), no_such_setting=1)
    known = str(error.value).partition("it has ")[2].split(", ")
    assert {"beta1", "beta2", "epsilon", "max_gradient_norm"} <= set(known)
    assert len(known) == len(set(known))


def test_the_list_of_settings_has_no_setting_twice_for_a_chain():
    with pytest.raises(ValueError) as error:
        st.AdamW(make_parameters(), compressor="random_k+int8", no_such_setting=1)
    known = str(error.value).partition("it has ")[2].split(", ")
    assert len(known) == len(set(known))


@pytest.mark.parametrize("name", CLASSES)
def test_an_unknown_compressor_is_rejected_with_a_list_of_those_that_exist(name):
    with pytest.raises(ValueError) as error:
        CLASSES[name](make_parameters(), compressor="zip")
    for one in _native.compressors(name, "float32"):
        assert f"'{one}'" in str(error.value)


@pytest.mark.parametrize(
    "key, value", [("weight_decay", -1.0), ("weight_decay", "x"), ("adapt", "x"), ("compress", None), ("lr", "x"), ("eps", "x")]
)
def test_a_wrong_value_in_a_group_is_rejected_by_its_name(key, value):
    p = make_parameters()
    with pytest.raises(ERRORS, match=rf"\b({key}|{'epsilon' if key == 'eps' else key})\b") as error:
        st.Lamb([{"params": p[:1]}, {"params": p[1:], key: value}])
    assert "incompatible function arguments" not in str(error.value)


@pytest.mark.parametrize(
    "wrong, error",
    [
        (lambda: [], ValueError),
        (lambda: [{"params": []}], ValueError),
        (lambda: torch.zeros(2), TypeError),
        (lambda: [3], TypeError),
        (lambda: 3, TypeError),
        (lambda: None, TypeError),
        (lambda: [torch.zeros(2, requires_grad=True) * 2], ValueError),
        (lambda: [{"parameters": [torch.zeros(2)]}], KeyError),
    ],
    ids=["nothing", "an empty group", "a tensor", "numbers", "a number", "None", "not a leaf", "a group without params"],
)
def test_what_is_no_list_of_parameters_is_rejected_as_by_torch(wrong, error):
    with pytest.raises(error):
        st.AdamW(wrong())
    if wrong() != [{"params": []}]:
        with pytest.raises(error):
            torch.optim.AdamW(wrong())


def test_numbers_of_numpy_are_settings_like_others():
    numpy = pytest.importorskip("numpy")
    p = make_parameters()
    q = copies_of(p)
    optimizer = st.Slamb(
        p,
        lr=numpy.float32(0.5),
        k=numpy.float64(0.5),
        beta3=numpy.float32(0.5),
        local_steps=numpy.int64(3),
        update_bound=numpy.float32(0.25),
        weight_decay=numpy.float32(0.25),
        max_gradient_norm=numpy.float32(0.5),
    )
    twin = st.Slamb(q, lr=0.5, k=0.5, beta3=0.5, local_steps=3, update_bound=0.25, weight_decay=0.25, max_gradient_norm=0.5)
    train(optimizer, 1, 3)
    train(twin, 1, 3)
    assert_same_bits(p, q)


# ----------------------------------------------------------------------------------------------- Reports and documentation


@pytest.mark.parametrize("name", CLASSES)
def test_memory_is_a_count_of_bytes_for_each_purpose_and_their_total(name):
    optimizer = CLASSES[name](make_parameters(), **SHORT[name])
    train(optimizer, 1, 6)
    memory = optimizer.memory()
    total = memory.pop("total")
    assert all(isinstance(one, str) and isinstance(count, int) and count >= 0 for one, count in memory.items())
    assert total == sum(memory.values())
    elements = sum(p.numel() for p in parameters_of(optimizer))
    assert memory["momentum"] >= 4 * elements and memory["variance"] >= 4 * elements


def test_moments_of_fewer_bits_need_less_memory():
    totals = {}
    for moments in ("float32", "bf16-momentum", "8-bit"):
        memory = st.AdamW(make_parameters([(256, 64)]), moments=moments).memory()
        totals[moments] = memory["momentum"] + memory["variance"]
    assert totals["8-bit"] < totals["bf16-momentum"] < totals["float32"]


@pytest.mark.parametrize("name", CLASSES)
def test_a_single_process_sends_nothing(name):
    optimizer = CLASSES[name](make_parameters(), **SHORT[name])
    train(optimizer, 1, 6)
    statistics = optimizer.statistics()
    assert statistics["sent_bytes"] == 0
    assert all(phase["sent_bytes"] == 0 for phase in statistics["phases"].values())


@pytest.mark.parametrize("with_norms", [False, True])
@pytest.mark.parametrize("name", CLASSES)
def test_statistics_have_the_documented_keys_and_types(name, with_norms):
    optimizer = CLASSES[name](make_parameters(), **SHORT[name])
    train(optimizer, 1, 6)
    statistics = optimizer.statistics(with_norms=with_norms)
    counts = ("step", "skipped_steps", "skipped_exchanges", "local_skips", "collectives", "payload_bytes", "sent_bytes")
    for key in (*counts, "warm_up_ended_after"):
        assert type(statistics[key]) is int and statistics[key] >= 0
    assert statistics["step"] == 6 and statistics["skipped_steps"] == 0
    assert statistics["phase"] in statistics["phases"]
    for phase in statistics["phases"].values():
        assert set(phase) == {"first_step", "collectives", "payload_bytes", "sent_bytes"}
    norms = {"parameter_norm", "momentum_norm", "variance_norm", "worker_error_norms", "parameter_drift"}
    counts_of_elements = {"bounded_elements", "late_elements"}
    of_a_pass = norms | counts_of_elements
    assert of_a_pass & set(statistics) == (of_a_pass if with_norms else set())
    assert all(type(statistics[key]) is int and statistics[key] >= 0 for key in counts_of_elements & set(statistics))


def test_norms_in_statistics_are_those_of_parameters_and_gradients():
    p = make_parameters()
    optimizer = st.AdamW(p, max_gradient_norm=0.5)
    train(optimizer, 1, 3)
    statistics = optimizer.statistics(with_norms=True)
    of_parameters = sum(float(one.detach().double().square().sum()) for one in p) ** 0.5
    of_gradients = sum(float(one.grad.double().square().sum()) for one in p) ** 0.5
    assert abs(statistics["parameter_norm"] - of_parameters) < 1e-5
    assert abs(statistics["gradient_norm"] - of_gradients) < 1e-5


def test_phases_of_one_bit_adam_are_in_its_statistics():
    optimizer = st.OneBitAdam(make_parameters(), warm_up_steps=3)
    train(optimizer, 1, 2)
    first = optimizer.statistics()
    train(optimizer, 3, 5)
    second = optimizer.statistics()
    assert first["phase"] != second["phase"] and second["warm_up_ended_after"] == 3
    assert second["phases"][second["phase"]]["first_step"] == 4


def test_optimizers_print_their_groups():
    text = repr(st.Slamb(make_parameters(), lr=0.125))
    assert text.startswith("Slamb") and "lr: 0.125" in text and "compress: True" in text


def documentation_of(cls):
    """The text of a class and of the classes to which it refers."""
    found, todo = [], [cls]
    while todo:
        one = todo.pop()
        if one not in found:
            found.append(one)
            todo += [st.__dict__[name] for name in re.findall(r"`(\w+)`", inspect.getdoc(one)) if name in st.__all__]
    return "\n".join(map(inspect.getdoc, found))


def undocumented(names, text):
    return [name for name in names if not re.search(rf"\b{name}\b", text)]


@pytest.mark.parametrize("name", CLASSES)
def test_the_documentation_has_every_keyword_of_a_class(name):
    keywords = [one for one in inspect.signature(CLASSES[name]).parameters if one != "self"]
    assert undocumented(keywords, documentation_of(CLASSES[name])) == []


@pytest.mark.parametrize("name", CLASSES)
def test_the_documentation_has_every_setting_of_a_class(name):
    known = set()
    for compressor in _native.compressors(name, "float32"):
        with pytest.raises(ValueError) as error:
            CLASSES[name](make_parameters(), compressor=compressor, no_such_setting=1)
        known |= set(str(error.value).partition("it has ")[2].split(", "))
    known -= {"beta1", "beta2", "epsilon"}  # other spellings of betas and eps
    assert undocumented(sorted(known), documentation_of(CLASSES[name])) == []


@pytest.mark.parametrize("name", CLASSES)
def test_the_documentation_has_every_compressor_of_a_class(name):
    text = documentation_of(CLASSES[name])
    assert [one for one in _native.compressors(name, "float32") if f'"{one}"' not in text] == []


def test_the_documentation_has_every_public_call_with_a_text():
    public = [one for name, one in vars(st.Optimizer).items() if callable(one) and not name.startswith("_")]
    assert len(public) > 8
    assert [one.__name__ for one in public if not inspect.getdoc(one)] == []


@pytest.mark.parametrize(
    "name, words",
    [
        ("adamw", ("FusedAdam", "apex", "AdamW8bit", "bitsandbytes")),
        ("lamb", ("FusedLAMB", "FusedLamb", "DeepSpeed", "timm", "LAMB8bit")),
        ("one_bit_adam", ("OnebitAdam", "DeepSpeed")),
        ("one_bit_lamb", ("OnebitLamb", "DeepSpeed")),
        ("zero_one_adam", ("ZeroOneAdam", "DeepSpeed")),
    ],
)
def test_the_help_has_the_words_that_users_of_others_search_for(name, words):
    for text in (inspect.getdoc(CLASSES[name]), pydoc.render_doc(st)):
        assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("kind", [st.Lamb, st.OneBitLamb])
def test_names_of_deepspeed_for_the_trust_ratio_are_accepted(kind):
    theirs = {"max_coeff": 9.0, "min_coeff": 0.02}
    ours = {"trust_ratio_upper": 9.0, "trust_ratio_lower": 0.02}
    if kind is st.OneBitLamb:
        theirs |= {"coeff_beta": 0.8, "factor_max": 3.0, "factor_min": 0.6, "factor_threshold": 0.2}
        ours |= {"trust_ratio_average": 0.8, "trust_ratio_factor_upper": 3.0, "trust_ratio_factor_lower": 0.6}
        ours |= {"trust_ratio_factor_change": 0.2}
    settings = [kind([torch.nn.Parameter(torch.ones(3))], **its)._arguments["settings"] for its in (theirs, ours)]
    assert settings[0] == settings[1] and ours.items() <= settings[0].items()


def test_the_check_of_documentation_finds_what_is_missing():
    assert undocumented(["k", "betas", "no_such_setting"], documentation_of(st.Slamb)) == ["no_such_setting"]
    assert documentation_of(st.OneBitLamb).count("decoupled weight decay") == 1


@pytest.mark.parametrize("settings", [{}, {"lr": 0.1}])
def test_the_check_of_rejections_fails_for_what_is_accepted(settings):
    with pytest.raises(pytest.fail.Exception):
        check_rejected("adamw", settings, ".")


def test_the_check_of_rejections_fails_for_another_message():
    with pytest.raises(AssertionError):
        check_rejected("adamw", {"rounding": "up"}, "threads")


@pytest.mark.parametrize("name", CLASSES)
def test_is_supported_says_what_the_constructor_does(name):
    cls = CLASSES[name]
    assert st.is_supported(cls)
    for moments in ("float32", "bf16-momentum", "8-bit", "4-bit"):
        for compressor in ("none", "sign", "int8", "top_k", "random_k", "random_k+int8", "random_k+sign", "zip"):
            possible = compressor in _native.compressors(cls._recipe, moments)
            assert st.is_supported(cls, compressor=compressor, moments=moments) == possible
    assert not st.is_supported(cls, dtype=torch.float64)
    assert not st.is_supported(cls, "meta")
    assert not st.is_supported(cls, lr=-1.0)
    with pytest.raises(TypeError, match="is_supported.. needs a class of slamb.torch, such as"):
        st.is_supported(torch.optim.Adam)
    with pytest.raises(TypeError, match="has no setting 'compresor'; it has"):
        st.is_supported(cls, compresor="int8")
    with pytest.raises(RuntimeError):
        st.is_supported(cls, "nonsense")
    if not torch.cuda.is_available():
        assert not st.is_supported(cls, "cuda")


def test_is_supported_looks_at_settings_together():
    assert st.is_supported(st.Slamb, compressor="random_k+int8", parameter_sync="four_levels")
    assert not st.is_supported(st.Slamb, compressor="top_k", parameter_sync="four_levels")
    assert not st.is_supported(st.Slamb, compressor="random_k", moments="8-bit", parameter_sync="four_levels")
