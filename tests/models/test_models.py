"""Every architecture: shapes, torchvision's names, derivatives, initialization, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from undelta.errors import ConfigError
from undelta.models import MODELS, build
from undelta.models.norms import norm_layer

SMALL: dict[str, dict[str, object]] = {
    "cnn": {"width": 8},
    "convnet": {"width": 8},
    "resnet8": {"width": 8},
    "resnet18": {"width": 4},
    "resnet34": {"width": 4},
    "resnet50": {"width": 4},
    "vgg11": {"width": 4, "hidden": 8},
    "vit": {"width": 16, "depth": 2},
}
"""Arguments that make a model fast enough for a test; those not named are fast by default."""

SIDES = {"cnn28": 28, "vgg11": 32}
RESNETS = ["resnet8", "resnet18", "resnet34", "resnet50"]
VIT_B_16 = {"patch": 16, "width": 768, "depth": 12, "heads": 12}
BLOCK = "encoder.layers.encoder_layer_11"
models = pytest.mark.parametrize("name", MODELS)


def small(name: str, *, seed: int = 0, **arguments: object) -> tuple[nn.Module, Tensor]:
    """A small seeded model and two images for it."""
    side = SIDES.get(name, 16)
    torch.manual_seed(seed)
    model = build(name, SMALL.get(name, {}) | arguments, shape=(3, side, side), classes=5)
    return model, torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))


def at_imagenet(name: str, **arguments: object) -> nn.Module:
    with torch.device("meta"):
        return build(name, arguments, shape=(3, 224, 224), classes=1000)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def weights(model: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in model.parameters() if parameter.ndim > 1]


@models
def test_two_images_give_two_rows_of_logits(name: str) -> None:
    model, images = small(name)
    logits = model(images)
    assert logits.shape == (2, 5)
    assert logits.isfinite().all()
    assert not torch.equal(logits[0], logits[1])


@models
def test_sides_may_differ(name: str) -> None:
    model = build(name, SMALL.get(name, {}), shape=(2, 40, 36), classes=3)
    assert model(torch.zeros(2, 2, 40, 36)).shape == (2, 3)


@pytest.mark.parametrize("name", ["mlp", "lenet", "cnn", "convnet", *RESNETS])
def test_odd_sides_work(name: str) -> None:
    model = build(name, SMALL.get(name, {}), shape=(3, 9, 7), classes=3)
    assert model(torch.zeros(2, 3, 9, 7)).shape == (2, 3)


@models
def test_models_build_on_the_meta_device(name: str) -> None:
    with torch.device("meta"):
        model = build(name, {}, shape=(3, 32, 32), classes=10)
        assert model(torch.empty(2, 3, 32, 32)).shape == (2, 10)
    assert all(tensor.is_meta for tensor in model.state_dict().values())


@models
def test_the_seed_alone_decides_the_initialization(name: str) -> None:
    first, same, other = (nn.utils.parameters_to_vector(small(name, seed=s)[0].parameters()) for s in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@models
def test_build_draws_no_more_random_numbers_than_the_builder(name: str) -> None:
    built, _ = small(name)
    torch.manual_seed(0)
    side = SIDES.get(name, 16)
    direct = MODELS[name](shape=(3, side, side), classes=5, **SMALL.get(name, {}))
    assert all(map(torch.equal, built.parameters(), direct.parameters()))


@models
def test_models_are_twice_differentiable(name: str) -> None:
    model, images = small(name)
    model, images = model.double(), images.double().requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        loss = nn.functional.cross_entropy(model(images), torch.tensor([0, 1]))
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        (second,) = torch.autograd.grad(norm, images)
    assert all(gradient.abs().max() > 0 for gradient in gradients)
    assert second.isfinite().all()
    assert second.abs().max() > 0


@models
def test_activations_are_separate_and_never_in_place(name: str) -> None:
    model, images = small(name)
    called: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, nn.ReLU | nn.Sigmoid | nn.GELU):
            assert not getattr(module, "inplace", False)
            module.register_forward_hook(lambda module, _inputs, _output: called.append(module))
    model(images)
    assert len(called) == len(set(called))


@pytest.mark.parametrize(
    ("name", "arguments", "parameters", "entries"),
    [
        ("resnet18", {}, 11_689_512, 122),
        ("resnet34", {}, 21_797_672, 218),
        ("resnet50", {}, 25_557_032, 320),
        ("vgg11", {}, 132_863_336, 22),
        ("vgg11", {"norm": "batch"}, 132_868_840, 62),
        ("vit", VIT_B_16, 86_567_656, 152),
    ],
    ids=["resnet18", "resnet34", "resnet50", "vgg11", "vgg11_bn", "vit_b_16"],
)
def test_sizes_are_those_of_torchvision(name: str, arguments: dict[str, object], parameters: int, entries: int) -> None:
    model = at_imagenet(name, **arguments)
    assert (count(model), len(model.state_dict())) == (parameters, entries)


@pytest.mark.parametrize(
    ("name", "arguments", "entry", "shape"),
    [
        ("resnet18", {}, "conv1.weight", (64, 3, 7, 7)),
        ("resnet18", {}, "layer2.0.downsample.0.weight", (128, 64, 1, 1)),
        ("resnet18", {}, "layer2.0.downsample.1.num_batches_tracked", ()),
        ("resnet18", {}, "layer4.1.bn2.bias", (512,)),
        ("resnet18", {}, "fc.weight", (1000, 512)),
        ("resnet50", {}, "layer1.0.downsample.0.weight", (256, 64, 1, 1)),
        ("resnet50", {}, "layer3.5.conv3.weight", (1024, 256, 1, 1)),
        ("vgg11", {}, "features.8.weight", (256, 256, 3, 3)),
        ("vgg11", {}, "classifier.0.weight", (4096, 25088)),
        ("vgg11", {}, "classifier.6.weight", (1000, 4096)),
        ("vgg11", {"norm": "batch"}, "features.4.weight", (128, 64, 3, 3)),
        ("vgg11", {"norm": "batch"}, "features.26.running_mean", (512,)),
        ("vit", VIT_B_16, "class_token", (1, 1, 768)),
        ("vit", VIT_B_16, "conv_proj.weight", (768, 3, 16, 16)),
        ("vit", VIT_B_16, "encoder.pos_embedding", (1, 197, 768)),
        ("vit", VIT_B_16, f"{BLOCK}.self_attention.in_proj_weight", (2304, 768)),
        ("vit", VIT_B_16, f"{BLOCK}.mlp.0.weight", (3072, 768)),
        ("vit", VIT_B_16, f"{BLOCK}.mlp.3.weight", (768, 3072)),
        ("vit", VIT_B_16, "heads.head.weight", (1000, 768)),
    ],
)
def test_names_are_those_of_torchvision(
    name: str, arguments: dict[str, object], entry: str, shape: tuple[int, ...]
) -> None:
    assert shapes(at_imagenet(name, **arguments))[entry] == shape


def test_lenet_is_that_of_dlg() -> None:
    model = build("lenet", {}, shape=(3, 32, 32), classes=100)
    assert [name for name in shapes(model) if "weight" in name] == [
        "body.0.weight", "body.2.weight", "body.4.weight", "fc.0.weight",
    ]  # fmt: skip
    assert weights(model) == [(12, 3, 5, 5), (12, 12, 5, 5), (12, 12, 5, 5), (100, 768)]
    assert all(0.3 < parameter.abs().max() <= 0.5 for parameter in model.parameters())


def test_cnns_have_the_sizes_of_the_literature() -> None:
    cnn = build("cnn", {}, shape=(3, 32, 32), classes=10)
    assert weights(cnn) == [(64, 3, 3, 3), (128, 64, 3, 3), (200, 128 * 8 * 8), (10, 200)]
    cnn28 = build("cnn28", {}, shape=(1, 28, 28), classes=10)
    assert weights(cnn28) == [(32, 1, 3, 3), (64, 32, 3, 3), (100, 64 * 7 * 7), (10, 100)]


def test_pooling_of_the_cnn_can_be_chosen() -> None:
    average, images = small("cnn")
    maximum, _ = small("cnn", pool="max")
    maximum.load_state_dict(average.state_dict())
    assert not torch.allclose(average(images), maximum(images))


def test_mlp_takes_any_number_of_hidden_layers() -> None:
    assert weights(build("mlp", {"hidden": []}, shape=(1, 2, 2), classes=3)) == [(3, 4)]
    assert weights(build("mlp", {"hidden": [5, 6]}, shape=(1, 2, 2), classes=3)) == [(5, 4), (6, 5), (3, 6)]


@pytest.mark.parametrize(
    ("stem", "side", "kernel"),
    [("auto", 64, 3), ("auto", 65, 7), ("cifar", 65, 3), ("imagenet", 64, 7)],
)
@pytest.mark.parametrize("name", RESNETS)
def test_the_stem_suits_the_image_unless_it_is_chosen(name: str, stem: str, side: int, kernel: int) -> None:
    model = build(name, {"width": 2, "stem": stem}, shape=(1, side, side), classes=2)
    assert shapes(model)["conv1.weight"] == (2, 1, kernel, kernel)
    sides: list[int] = []
    model.get_submodule("layer1").register_forward_hook(lambda _module, _inputs, out: sides.append(out.shape[-1]))
    model(torch.zeros(2, 1, side, side))
    assert sides == [side if kernel == 3 else (side + 3) // 4]


@pytest.mark.parametrize("name", ["cnn", "convnet", "vgg11", *RESNETS])
def test_norms_can_be_exchanged_and_left_out(name: str) -> None:
    for norm, kind in (("batch", nn.BatchNorm2d), ("group", nn.GroupNorm), ("none", None)):
        model, images = small(name, norm=norm)
        assert model(images).isfinite().all()
        found = {type(module) for module in model.modules()} & {nn.BatchNorm2d, nn.GroupNorm}
        assert found == ({kind} if kind else set())
        # Without a norm, only a bias can shift a convolution's output.
        biased = [m.bias is not None for m in model.modules() if isinstance(m, nn.Conv2d)]
        assert all(biased) if name == "vgg11" or norm == "none" else not any(biased)


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (48, 16), (12, 4), (6, 2), (7, 1)])
def test_group_norm_takes_the_most_groups_that_divide_the_channels(channels: int, groups: int) -> None:
    norm = norm_layer("group", channels)
    assert isinstance(norm, nn.GroupNorm)
    assert norm.num_groups == groups


def test_dropout_of_vgg_is_off_unless_asked_for() -> None:
    model, _ = small("vgg11")
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())
    model, _ = small("vgg11", dropout=0.5)
    assert [module.p for module in model.modules() if isinstance(module, nn.Dropout)] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (["cnn"], {}, "unknown model ['cnn']; choose one of mlp"),
        ("alexnet", {}, "unknown model 'alexnet'; choose one of mlp, lenet, "),
        ("cnn", {"depth": 3}, "unknown argument 'depth' of model cnn; it accepts width, hidden, norm, pool"),
        ("cnn", {"classes": 3}, "unknown argument 'classes'"),
        ("cnn", {"width": 0}, "expected 1 <= width <= 1024, got width=0"),
        ("resnet18", {"width": 1025}, "expected 1 <= width <= 1024, got width=1025"),
        ("lenet", {"width": True}, "got width=True (bool, not int)"),
        ("vgg11", {"width": "64"}, "got width='64' (str, not int)"),
        ("convnet", {"width": 64.0}, "got width=64.0 (float, not int)"),
        ("cnn28", {"hidden": 10**9}, "expected 1 <= hidden <= 16384, got hidden=1000000000"),
        ("cnn28", {"hidden": 16**9999}, "got hidden=a very long int"),
        ("mlp", {"hidden": 7}, "expected hidden to be a list"),
        ("mlp", {"hidden": [8] * 33}, "expected hidden to be a list of at most 32"),
        ("mlp", {"hidden": [8, None]}, "got hidden[1]=None"),
        ("cnn", {"pool": "sum"}, "expected pool to be one of average, max, got pool='sum'"),
        ("resnet50", {"norm": ["batch"]}, "one of batch, group, none, got norm=['batch']"),
        ("resnet8", {"stem": "os:system"}, "expected stem to be one of imagenet, cifar, auto"),
        ("vgg11", {"dropout": 1.0}, "expected 0.0 <= dropout <= 0.9, got dropout=1.0"),
        ("vgg11", {"dropout": float("nan")}, "got dropout=nan"),
        ("vit", {"depth": 65}, "expected 1 <= depth <= 64"),
        ("vit", {"heads": 3}, "expected width to be a multiple of heads, got width=64 and heads=3"),
        ("vit", {"patch": 5}, "expected patch to divide the sides of 32x32 images, got patch=5"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_in_one_line(name: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        build(name, arguments, shape=(3, 32, 32), classes=10)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "message"),
    [
        ("cnn", (3, 3, 8), 10, "expected images of at least 4x4 pixels, got 3x8"),
        ("convnet", (3, 8, 3), 10, "expected images of at least 4x4 pixels, got 8x3"),
        ("vgg11", (3, 31, 31), 10, "expected images of at least 32x32 pixels, got 31x31"),
        ("vit", (1, 512, 512), 10, "expected at most 4096 patches"),
        ("mlp", (4, 4096, 4096), 10, "expected at most 500,000,000 parameters, got 17,1"),
        ("mlp", (3, 8), 10, "expected shape=(channels, height, width), got shape=(3, 8)"),
        *[(name, (17, 8, 8), 10, "expected 1 <= channels <= 16, got channels=17") for name in MODELS],
        *[(name, (3, 4097, 8), 10, "expected 1 <= height <= 4096, got height=4097") for name in MODELS],
        *[(name, (3, 64, 0), 10, "expected 1 <= image width <= 4096") for name in MODELS],
        *[(name, (3, 32, 32), 0, "expected 1 <= classes <= 100000, got classes=0") for name in MODELS],
        *[(name, (3, 32, 32), 100_001, "got classes=100001") for name in MODELS],
    ],
)  # fmt: skip
def test_bad_shapes_and_classes_are_refused(name: str, shape: tuple[int, int, int], classes: int, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        build(name, {}, shape=shape, classes=classes)
    assert message in str(refusal.value)


@pytest.mark.parametrize("name", ["resnet34", "resnet50"])
def test_arguments_in_range_cannot_multiply_to_an_enormous_model(name: str) -> None:
    with pytest.raises(ConfigError, match="at most 500,000,000 parameters"):
        build(name, {"width": 1024}, shape=(3, 32, 32), classes=10)
