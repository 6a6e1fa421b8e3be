"""Encoders of other libraries: their features are those of the library itself, called directly."""

import importlib
import json
import pickle
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import resize

import vidssl
from vidssl import cli
from vidssl.base.errors import CheckpointError, ConfigError, UntrustedError
from vidssl.base.types import VideoMeta
from vidssl.data.clip_samplers import ClipSettings
from vidssl.data.to_device import normalised
from vidssl.jobs.load_network import load_subject
from vidssl.models.external import LIBRARIES, Encoder, facts_of, is_external, load_external
from vidssl.transforms.crops import center_crop

SIZES = {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDE = {**SMALL, "intermediate_size": 64}
TEXT = {**WIDE, "vocab_size": 99, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
PATCHES = {**WIDE, "image_size": 32, "patch_size": 8}


def frames_of(count, height=54, width=76):
    """Smooth moving frames (T, 3, H, W)."""
    y, x = np.mgrid[:height, :width]
    waves = [[127 + 100 * np.sin((x * (c + 1) + 5 * t) / 9 + y / 7) for c in range(3)] for t in range(count)]
    return np.array(waves).round().astype(np.uint8)


def features_of(name, frames, **options):
    """Features (D,) of one clip, as vidssl makes them."""
    encoder, backbone = load_external(name, **options)
    crop = encoder.crop or (lambda x: center_crop(x, encoder.size, encoder.short_side).frames)
    if not name.startswith("hub:"):
        pickle.dumps(encoder.crop)  # for workers, whose way to start may be spawn
    view = torch.from_numpy(np.ascontiguousarray(crop(frames)))[None]
    with torch.no_grad():
        return encoder, backbone.eval()(normalised(view, encoder.mean, encoder.std))[0]


def saved(folder, config, processor, kind=None):
    """A network with random weights and its processor, in a folder."""
    from transformers import AutoModel

    torch.manual_seed(0)
    network = (kind(config) if kind else AutoModel.from_config(config)).eval()
    network.save_pretrained(folder)
    processor.save_pretrained(folder)
    return network


def vjepa2(folder):
    import transformers as tr

    predictor = {"pred_hidden_size": 16, "pred_num_attention_heads": 2, "pred_num_hidden_layers": 1}
    config = tr.VJEPA2Config(crop_size=32, patch_size=8, frames_per_clip=4, mlp_ratio=2.0, **SMALL, **predictor)
    return saved(folder, config, tr.VJEPA2VideoProcessor(**SIZES)), lambda m, x: m.get_vision_features(**x).mean(1)


def vivit(folder):
    """Its processor is one of images that takes the frames of a clip; it has an offset beside a mean."""
    import transformers as tr

    config = tr.VivitConfig(image_size=32, num_frames=4, tubelet_size=[2, 8, 8], **WIDE)
    return saved(folder, config, tr.VivitImageProcessor(**SIZES)), lambda m, x: m(**x).pooler_output


def dinov2(folder):
    import transformers as tr

    config = tr.Dinov2Config(image_size=32, patch_size=8, **SMALL)
    return saved(folder, config, tr.BitImageProcessor(**SIZES)), lambda m, x: m(**x).pooler_output


def clip(folder):
    import transformers as tr

    config = tr.CLIPConfig(vision_config=PATCHES, text_config=TEXT, projection_dim=16)
    network = saved(folder, config, tr.CLIPImageProcessor(**SIZES))
    return network, lambda m, x: m.get_image_features(**x).pooler_output


def siglip2(folder):
    import transformers as tr

    config = tr.Siglip2Config(vision_config={"num_patches": 64, "patch_size": 8, **WIDE}, text_config=TEXT)
    network = saved(folder, config, tr.Siglip2ImageProcessor(patch_size=8, max_num_patches=48))
    return network, lambda m, x: m.get_image_features(**x).pooler_output


CLIPS, IMAGES = (vjepa2, vivit), (dinov2, clip, siglip2)


@pytest.mark.parametrize("family", [*CLIPS, *IMAGES], ids=lambda family: family.__name__)
def test_transformers(family, tmp_path):
    """At 4 frames of 54 x 76, whose time, height and width differ."""
    import transformers as tr

    network, features = family(tmp_path)
    frames = frames_of(4)
    if family in CLIPS and family is not vivit:
        processor = tr.AutoVideoProcessor.from_pretrained(tmp_path)
        inputs = processor([torch.from_numpy(frames)], return_tensors="pt", do_sample_frames=False)
    else:
        processor = tr.AutoImageProcessor.from_pretrained(tmp_path)
        images = [torch.from_numpy(frame) for frame in frames]
        inputs = processor(images, return_tensors="pt")
    with torch.no_grad():
        expected = features(network, inputs)
    encoder, ours = features_of(f"transformers:{tmp_path},count=4", frames)
    assert encoder.images == (family in IMAGES)
    torch.testing.assert_close(ours, expected.mean(dim=0), rtol=1e-4, atol=1e-4)


def image_sizes(side, **more):
    return {"size": {"height": side, "width": side}, **more}


VIDEOS = {**PATCHES, "num_frames": 4}
DECODER = {f"decoder_{name}": value for name, value in WIDE.items()} | {"decoder_hidden_size": 16}
STAGES = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
WINDOWS = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4}
SEGMENTS = {**STAGES, "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 16}


def first(output):
    return output.last_hidden_state[:, 0]


def mean(output):
    return output.last_hidden_state.mean(1)


def mean_of_maps(output):
    return output.last_hidden_state.mean((2, 3))


def pooled(output):
    return output.pooler_output.flatten(1)


# As they are saved after training, with what that needs: class, settings, part that encodes, its features.
SAVED = {
    "ViTForMaskedImageModeling": ("ViT", {**PATCHES, "encoder_stride": 8}, "vit", first, "class token"),
    "TimesformerForVideoClassification": ("Timesformer", VIDEOS, "timesformer", first, "class token"),
    "VideoMAEForPreTraining": ("VideoMAE", {**VIDEOS, **DECODER}, "videomae", mean, "mean of tokens"),
    "ViTMAEForPreTraining": ("ViTMAE", {**PATCHES, **DECODER, "mask_ratio": 0.0}, "vit", first, "class token"),
    "SwinForImageClassification": ("Swin", WINDOWS, "swin", pooled, "pooled output"),
    "SegformerForSemanticSegmentation": ("Segformer", SEGMENTS, "segformer", mean_of_maps, "mean of maps"),
}


@pytest.mark.parametrize("kind", SAVED)
def test_of_transformers_nothing_is_random(kind, tmp_path):
    """Features are those of the saved weights alone, by the part that encodes, called directly."""
    import transformers as tr

    family, settings, part, features, stated = SAVED[kind]
    torch.manual_seed(1)
    network = getattr(tr, kind)(getattr(tr, f"{family}Config")(**settings)).eval()
    network.save_pretrained(tmp_path)
    processor = tr.VideoMAEImageProcessor if "num_frames" in settings else tr.ViTImageProcessor
    processor(**(SIZES if "num_frames" in settings else image_sizes(32))).save_pretrained(tmp_path)
    if "mask_ratio" in settings:  # as it was trained
        file = tmp_path / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "mask_ratio": 0.75}))
    encoder, backbone = load_external(f"transformers:{tmp_path},count=4")
    assert encoder.features == stated and encoder.images == ("num_frames" not in settings)
    x = torch.rand(2, 3, 4, encoder.size, encoder.size)
    with torch.no_grad():
        frames = x.transpose(1, 2)
        output = (network.get_submodule(part))(frames.flatten(0, 1) if encoder.images else frames)
        expected = features(output)
        expected = expected.unflatten(0, (2, 4)).mean(1) if encoder.images else expected
        torch.testing.assert_close(backbone(x), expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(backbone(x), backbone(x))
    origin = load_subject(f"transformers:{tmp_path}", {}).origin
    assert origin["features"] == stated


@pytest.mark.parametrize("saved_part", ["half", "classifier of CLIP"])
def test_weights_that_files_lack_are_refused(saved_part, tmp_path):
    import transformers as tr

    if saved_part == "half":
        network = tr.ViTModel(tr.ViTConfig(**PATCHES))
        weights = {name: weight for name, weight in network.state_dict().items() if "layers.1." not in name}
        network.save_pretrained(tmp_path, state_dict=weights)
    else:
        config = tr.CLIPConfig(text_config=TEXT, vision_config=PATCHES)
        tr.CLIPForImageClassification(config).save_pretrained(tmp_path)
    tr.ViTImageProcessor(**image_sizes(32)).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"^transformers:\S+ lacks \d+ weights of its \w+ \([^\n]*python:[^\n]*$"):
        load_external(f"transformers:{tmp_path}")


@pytest.mark.parametrize("name", ["mc3_18", "squeezenet1_1"])
def test_torchvision(name):
    """Without weights, with the preprocessing of the weights; the features are what the last layer gets."""
    from torchvision.models import get_model, get_model_weights

    preset = get_model_weights(name).DEFAULT.transforms()
    encoder, _ = load_external(f"torchvision:{name}@none,count=4")
    frames = frames_of(4, 70, 90)
    torch.manual_seed(0)
    network, seen = get_model(name, weights=None).eval(), []
    kinds = torch.nn.Linear | torch.nn.Conv2d | torch.nn.Conv3d
    layers = [m for m in network.modules() if isinstance(m, kinds)]
    layers[-1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        clip = preset(torch.from_numpy(frames))
        network(clip if encoder.images else clip[None])
    expected = seen[0].flatten(2).mean(dim=2) if seen[0].ndim > 2 else seen[0]  # of maps after the classifier
    _, ours = features_of(f"torchvision:{name}@none,count=4", frames)
    torch.testing.assert_close(ours, expected.mean(dim=0), rtol=1e-4, atol=1e-4)


def test_timm():
    timm = pytest.importorskip("timm")
    frames = frames_of(5, 70, 90)
    encoder, features = features_of("timm:resnet10t@none,frames=concatenate,count=5", frames)
    torch.manual_seed(0)
    network = timm.create_model("resnet10t", pretrained=False, num_classes=0).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(network), is_training=False)
    images = torch.stack([transform(Image.fromarray(frame.transpose(1, 2, 0))) for frame in frames])
    with torch.no_grad():
        torch.testing.assert_close(features, network(images).flatten(), rtol=1e-4, atol=1e-4)
    assert encoder.version == f"timm {timm.__version__}"


OWN = """
import torch


class Means(torch.nn.Module):
    change = torch.nn.Identity()

    def forward(self, x):  # (B, 3, T, S, S)
        return self.change(x.mean(dim=(3, 4)).flatten(1))


def means():
    return Means(), {"size": 16, "short_side": 20, "frames": 4, "seconds": 0.5, "mean": (0.5,), "licence": "MIT"}


def no_size():
    return Means(), {}


def misspelt():
    return Means(), {"size": 32, "frame": 4}
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_encoder.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "python:own_encoder:means"
    sys.modules.pop("own_encoder", None)


def test_python(own):
    frames = frames_of(4)
    encoder, features = features_of(own, frames)
    pixels = torch.from_numpy(np.ascontiguousarray(center_crop(frames, 16, 20).frames)) / 255 - 0.5  # (T, 3, S, S)
    torch.testing.assert_close(features, pixels.mean(dim=(2, 3)).T.flatten(), rtol=1e-4, atol=1e-4)
    assert encoder.licence == "MIT" and encoder.training == ("not stated",)


@pytest.fixture
def giving(own, monkeypatch):
    """Have the function give a network, or one that changes its features, and settings: `giving(change=...)`."""
    module = importlib.import_module("own_encoder")

    def give(network=None, change=None, **settings):
        network = network or module.Means()
        if change:
            network.change = change
        monkeypatch.setattr(module, "means", lambda: (network, {"size": 16, "frames": 4, **settings}))
        return own

    return give


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 0}, "size is 0 "),
        ({"seconds": "all"}, "seconds is 'all' "),
        ({"mean": (0.4, 0.5)}, r"mean is \(0.4, 0.5\) .*give one number, or three"),
        ({"std": (0.2, float("nan"), 0.2)}, "std is nan .*greater than 0"),
        ({"crop": 5}, "crop is 5 "),
        ({"network": torch.nn.Identity()}, r"Identity makes \(1, 3, 4, 16, 16\) of clips .*: wrap it in a module"),
        ({"change": lambda x: x.to(torch.complex64)}, "makes complex numbers of clips"),
    ],
)
def test_wrong_encoders_of_a_user(giving, given, message):
    with pytest.raises(ConfigError, match=rf"^python:own_encoder:means: [^\n]*{message}[^\n]*$"):
        load_external(giving(**given))


def drop_little(x):
    return 1e-6 * torch.nn.functional.dropout(x, 0.1, training=True)


def flip_at_random(x):
    return x.flip(1) if torch.rand(()) < 0.5 else x


@pytest.mark.parametrize("change", [drop_little, flip_at_random])
def test_a_network_that_drops_at_random_is_refused(giving, change):
    """Of whatever library, and whatever the size of its features."""
    for seed in range(2):
        torch.manual_seed(seed)
        with pytest.raises(ConfigError, match=r"^python:own_encoder:means: [^\n]* other features each time[^\n]*$"):
            load_external(giving(change=change))


def test_maps_of_one_pixel_are_features(giving):
    _, backbone = load_external(giving(torch.nn.Sequential(torch.nn.Conv3d(3, 7, 1), torch.nn.AdaptiveAvgPool3d(1))))
    assert backbone.dim == 7 and backbone(torch.rand(2, 3, 8, 16, 16)).shape == (2, 7)


@pytest.mark.parametrize(("name", "stride"), [("hub", 4), ("vivit", 2)])
def test_strides_are_those_that_are_stated(name, stride, tmp_path):
    """At 30 frames a second."""
    if name == "hub":
        (tmp_path / "hubconf.py").write_text(HUB)
        name = f"hub:{tmp_path}:vjepa2_tiny_32"
    else:
        vivit(tmp_path)
        name = f"transformers:{tmp_path}"
    encoder, _ = load_external(name, trust=True)
    clip = ClipSettings(frames=encoder.frames, seconds=encoder.seconds)
    video = VideoMeta(600, 30.0, 100, 100)
    frames = clip.clip(video, 0, clip.span(video)).indices
    assert frames.tolist() == list(range(0, stride * encoder.frames, stride))


def small_crop(frames):
    return frames[:, :, :8, :8]


def failing_crop(frames):
    return frames.no_such_method()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"crop": small_crop}, r"crop of the encoder makes uint8 \(4, 3, 8, 8\) .*, not uint8 \(4, 3, 16, 16\)$"),
        ({"crop": failing_crop}, r"the encoder cannot crop frames \(4, 3, 48, 48\): AttributeError: "),
        ({"change": lambda x: x[:1]}, r"Means makes \(1, 12\) of clips \(4, 3, 4, 16, 16\), not features \(4, D\)"),
    ],
)
def test_mistakes_that_videos_show(giving, digits, given, message):
    with pytest.raises(ConfigError, match=message):
        vidssl.extract(giving(**given), digits / "motion/test.csv", workers=0)


def test_onnx(digits, tmp_path):
    """Features of videos are those of the network: the same clips, crops, and for two streams unit parts."""
    pytest.importorskip("onnxruntime")
    onnx, file = pytest.importorskip("onnx"), tmp_path / "net.onnx"
    vidssl.export("vidssl-free", to="onnx", out=file)
    subject = load_subject(f"onnx:{file}", {})
    assert subject.test.clip == load_subject("vidssl-free", {}).test.clip
    assert sum(buffer.numel() for buffer in subject.backbone.buffers()) == file.stat().st_size
    options, names = {"workers": 0, "progress": False}, (f"onnx:{file}", "vidssl-free")
    features, expected = (vidssl.extract(name, digits / "motion/test.csv", **options) for name in names)
    torch.testing.assert_close(features.x, expected.x, rtol=1e-4, atol=1e-4)
    model = onnx.load(file)
    model.producer_name = "another"
    onnx.save(model, file)
    assert load_subject(f"onnx:{file}", {}).request() != subject.request()  # another file of the same name


HUB = """
import torch


class Small(torch.nn.Module):
    num_frames = 4

    def forward(self, x):  # tokens (B, N, D)
        return x.mean(dim=(3, 4)).transpose(1, 2)


def vjepa2_tiny_32():
    return Small(), torch.nn.Identity()


def dinov2_tiny():
    return torch.nn.Sequential(torch.nn.AvgPool2d(56), torch.nn.Flatten())


def vjepa2_preprocessor(crop_size):
    def prepare(frames):  # (T, H, W, 3)
        clip = torch.from_numpy(frames[:, :crop_size, :crop_size].copy()).permute(3, 0, 1, 2) / 255
        mean, std = (torch.tensor(v).view(3, 1, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
        return [(clip - mean) / std]

    return prepare


def other():
    return Small()
"""


def test_hub(tmp_path):
    """Of a folder, as torch.hub reads one; it is code of others."""
    (tmp_path / "hubconf.py").write_text(HUB.replace("_32", "_032"))
    frames = frames_of(4)
    name = f"hub:{tmp_path}:vjepa2_tiny_032"
    with pytest.raises(UntrustedError, match=r"runs the code of .*: give trust=True"):
        load_external(name)
    encoder, features = features_of(name, frames, trust=True)
    pixels = torch.from_numpy(frames[:, :, :32, :32].copy()) / 255
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    torch.testing.assert_close(features, ((pixels - mean) / std).mean(dim=(0, 2, 3)), rtol=1e-4, atol=1e-4)
    assert encoder.size == 32 and encoder.frames == 4
    encoder, features = features_of(f"hub:{tmp_path}:dinov2_tiny,count=4", frames, trust=True)
    large = resize(torch.from_numpy(frames), [256], InterpolationMode.BICUBIC)  # the short side; the long one is 360
    pixels = (large[:, :, 16:240, 68:292] / 255 - mean) / std
    expected = torch.nn.functional.avg_pool2d(pixels, 56).flatten(1).mean(dim=0)
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-4)
    assert encoder.images and encoder.size == 224
    with pytest.raises(CheckpointError, match=r"how other prepares its frames is not known: .*python:"):
        load_external(f"hub:{tmp_path}:other", trust=True)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("torchvision:r3d_81", CheckpointError, "torchvision has no network r3d_81 .did you mean 'r3d_18'"),
        ("torchvision:r3d_18@IMAGENET", CheckpointError, "no weights IMAGENET: KINETICS400_V1, DEFAULT, none"),
        ("torchvision:fcn_resnet50@none", CheckpointError, "is no classifier"),
        ("torchvision:r3d_18@none,frames=mean", ConfigError, "encodes clips: frames=mean is for encoders of images"),
        ("torchvision:resnet18@none,frames=sum", ConfigError, "frames is mean, concatenate or differences"),
        ("torchvision:resnet18@none,frames=differences,count=1", ConfigError, "needs two frames or more"),
        ("torchvision:resnet18@none,count=0", ConfigError, "count is 1 or more"),
        ("torchvision:resnet18@none,seconds=-1", ConfigError, "seconds is above 0, or whole"),
        ("transformers:no/such_network", CheckpointError, "transformers:no/such_network cannot be loaded: .*"),
        *((f"{library}:", CheckpointError, f"^{library}: is a library without a name: ") for library in LIBRARIES),
        ("onnx:none.onnx", CheckpointError, "there is no file none.onnx"),
        ("python:own_encoder", ConfigError, "is not python:PACKAGE.MODULE:FUNCTION"),
        ("python:own_encoder:no_size", ConfigError, "not a module and a dictionary: size, and any of"),
        (
            "python:own_encoder:misspelt",
            ConfigError,
            "frame'], where 'frame' is unknown .did you mean 'frames'.*any of any_shape",
        ),
        ("torchvision:resnet18@none,count=2,count=3", ConfigError, "has count twice: leave one out"),
        ("torchvision:r3d_18@none,count=9,seconds=0", ConfigError, "seconds is above 0, or whole"),
        ("python:own_encoder:nothing", ConfigError, "no attribute 'nothing'"),
        ("python:no_such_module:f", CheckpointError, "python:no_such_module:f needs a package that is not installed"),
    ],
)
def test_what_is_wrong_is_one_line(own, monkeypatch, name, kind, message):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(kind, match=message) as caught:
        load_external(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("library", "package"), [("timm", "timm"), ("transformers", "transformers"), ("onnx", "onnxruntime")]
)
def test_a_library_that_is_not_installed(monkeypatch, library, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "vidssl.models.external.load_transformers", raising=False)
    message = rf"{library}:x needs a package that is not installed \(.*{package}.*\): pip install {package}$"
    with pytest.raises(CheckpointError, match=message) as caught:
        load_external(f"{library}:x")
    assert "\n" not in str(caught.value)


def test_a_package_that_code_of_others_needs(tmp_path):
    """It is named; torch.hub itself is there."""
    (tmp_path / "hubconf.py").write_text("dependencies = []\nimport no_such_package\n")
    with pytest.raises(CheckpointError, match=r"not installed \(No module named 'no_such_package'\): install it"):
        load_external(f"hub:{tmp_path}:dinov2_tiny", trust=True)


CODE = """
import torch
import transformers


class TinyConfig(transformers.PretrainedConfig):
    model_type = "tiny_of_others"


class Tiny(transformers.PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(3, 5)
        self.post_init()

    def forward(self, x):
        return self.layer(x.mean(dim=(2, 3)))
"""


def test_code_of_others_needs_trust(tmp_path, monkeypatch):
    """And nothing is looked up in the network for a folder."""
    tr = pytest.importorskip("transformers")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "code_of_others"
    tr.BitImageProcessor(**SIZES).save_pretrained(folder)
    (folder / "code_of_others.py").write_text(CODE)
    classes = {"AutoConfig": "code_of_others.TinyConfig", "AutoModel": "code_of_others.Tiny"}
    (folder / "config.json").write_text(json.dumps({"model_type": "tiny_of_others", "auto_map": classes}))
    weights = {"layer.weight": torch.ones(5, 3), "layer.bias": torch.ones(5)}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UntrustedError, match=f"^transformers:{folder} is code of others: give trust=True to run it$"):
        load_external(f"transformers:{folder}")
    assert load_external(f"transformers:{folder}", trust=True)[1].dim == 5


@pytest.mark.parametrize(
    ("weights", "licence", "training"),
    [
        ("torchvision KINETICS400_V1", "not stated", ("Kinetics-400",)),
        ("torchvision IMAGENET1K_SWAG_E2E_V1", "CC-BY-NC-4.0", ("Instagram", "ImageNet-1K")),
        ("transformers MCG-NJU/videomae-base", "CC-BY-NC-4.0", ("Kinetics-400",)),
        ("transformers MCG-NJU/videomae-base-ssv2", "not stated", ("not stated",)),
        ("hub facebookresearch/dinov2:main dinov2_vits14", "Apache-2.0", ("LVD-142M",)),
        ("timm resnet50.a1_in1k", "not stated", ("ImageNet-1K",)),
        ("timm vit_base_patch16_224.augreg_in21k_ft_in1k", "not stated", ("ImageNet-21K", "ImageNet-1K")),
        (None, "none needed", ("none",)),
    ],
)
def test_licence_and_training_sets(weights, licence, training):
    """Of the table; what the library states itself comes first."""
    encoder = Encoder(torch.nn.Identity(), 16, **facts_of(weights))
    assert (encoder.licence, encoder.training) == (licence, training)
    if weights is not None:
        assert facts_of(weights, "MIT")["licence"] == "MIT"


def test_names_of_libraries():
    assert all(is_external(f"{library}:x") for library in LIBRARIES)
    assert not any(map(is_external, ("random", "vidssl-small", "output/timm:x", "timm", "hf-hub:a/b", None)))


def test_an_encoder_is_measured_like_a_network(own, digits, tmp_path):
    """In commands and Python; results say what its library and the table state."""
    lists = [str(digits / "motion/test.csv"), "--train-list", str(digits / "motion/train.csv")]
    options = ["--checkpoint", own, "--workers", "0", "--quiet", "--out", str(tmp_path / "test")]
    cli.run("test", [*lists, *options, "--protocol", "knn", "retrieval"])
    results = json.loads((tmp_path / "test/results.json").read_text())
    assert results["checkpoint"]["path"] == own and results["checkpoint"]["licence"] == "MIT"
    assert results["protocol"]["clip"]["frames"] == 4 and results["protocol"]["size"] == 16
    features = vidssl.extract(own, digits / "motion/test.csv", workers=0, progress=False)
    assert features.x.shape == (len(features.index), 12)
    with pytest.raises(ConfigError, match="has no size: its library's preprocessing makes one crop of 16 pixels"):
        vidssl.extract(own, digits / "motion/test.csv", size=32, progress=False)
    with pytest.raises(ConfigError, match="brings its own settings"):
        vidssl.extract(own, digits / "motion/test.csv", cfg="toy/sce", progress=False)


def test_floors():
    """Two videos of the same frame differ in motion alone: thumbnails are equal, differences are not."""
    still = frames_of(1).repeat(4, axis=0)
    moving = np.concatenate([frames_of(3)[1:], still[2:]])
    for name, equal in (("thumbnails", True), ("differences", False)):
        of_still, of_moving = (features_of(f"floor:{name}", frames)[1] for frames in (still, moving))
        assert of_still.shape == (768,) and torch.equal(of_still, of_moving) == equal
    with pytest.raises(
        CheckpointError, match="there is no floor:x: floor:thumbnails, floor:differences, floor:motion, floor:untr"
    ):
        load_external("floor:x")


def test_the_untrained_floor_is_that_of_small_cpu():
    """Weights, clips and features of a clip are those of `random` with the config."""
    of_config, floor = load_subject("random", {"cfg": "small_cpu"}), load_subject("floor:untrained", {})
    for name in ("clip", "clips", "crops", "size", "short_side", "mean", "std"):
        assert getattr(floor.test, name) == getattr(of_config.test, name), name
    clips = torch.rand(2, 3, 4, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = floor.backbone(clips)
        assert torch.equal(features, of_config.backbone(clips))
        assert torch.equal(floor.backbone.finish(features), of_config.backbone.finish(features))
