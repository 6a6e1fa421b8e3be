"""The backbone interface, and the registry that builds backbones by name.

Shapes: B clips, T frames, H x W pixels; C channels of a feature map; dim features of a clip.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vidssl.base.config import Tree, bind_choice, build
from vidssl.base.errors import ConfigError, VidsslError, in_one_line
from vidssl.base.registry import Registry
from vidssl.models.eval_mode import eval_mode

_SAME = 1e-4  # largest difference / largest value of features of one clip: rounding stays below it
_RESNETS = "resnet18, resnet50, resnet3d18 or resnet3d50"


class Backbone(nn.Module):
    """Encodes clips (B, 3, T, H, W) as features (B, dim).

    A ResNet also has `layer3` and `layer4`, which methods and tools with regions use: `forward(x) = layer4(layer3(x))`.
    """

    dim: int
    feature_layers: tuple[str, ...] = ()  # whose maps `features` computes, from the first to the last
    last_maps: str = "layer4"  # the layer with the last maps, as in `layer_module`; "": not known
    run_config: Tree | None = None  # config of the run that trained it, plain data; set by `load_backbone`

    def __init__(self) -> None:
        super().__init__()
        if not type(self).__module__.startswith("vidssl."):
            self.register_forward_hook(_check_features)

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips."""
        raise ConfigError(f"backbone {type(self).__name__} has no forward(x): see docs/extend.md")

    def stream(self, name: str) -> "Backbone":
        """Return the network of a stream, of a backbone that has several.

        Raises:
            ConfigError: There is no such stream.
        """
        raise ConfigError(f'{type(self).__name__} has no streams: leave stream="{name}" out')

    def finish(self, features: Tensor) -> Tensor:
        """Return the features (…, dim) of videos as they are compared, given their means over clips: unchanged here."""
        return features

    def layer3(self, x: Tensor) -> Tensor:
        """Compute the output of the third stage (B, C, T', H', W') for clips (B, 3, T, H, W)."""
        self.check_regions()
        raise NotImplementedError

    def layer4(self, maps: Tensor) -> Tensor:
        """Compute features (B, dim) from the output of the third stage (B, C, T', H', W')."""
        raise NotImplementedError

    def features(self, x: Tensor, out: Sequence[str]) -> list[Tensor]:
        """Compute the feature maps (B, C, T', H', W') of the layers named in `out` for clips (B, 3, T, H, W)."""
        self.check_layers(out)
        raise NotImplementedError

    def layer_module(self, layer: str) -> nn.Module:
        """Return the module whose output has the maps of a layer: one of `feature_layers`, or any module by its path.

        Raises:
            ConfigError: There is no such module.
        """
        try:
            return self.get_submodule(layer)
        except AttributeError:
            paths = ", ".join([*self.feature_layers, *(name for name, _ in self.named_children())])
            kind = type(self).__name__
            raise ConfigError(f"{kind} has no module '{layer}': name a layer, or a path below {paths}") from None

    def as_maps(self, output: Any, clips: int) -> Tensor:
        """Return the output of a module for B `clips` as maps (B, C, T', H', W').

        It has this shape, or (B * T, C, H', W') if the network encodes frame by frame.

        Raises:
            ConfigError: It has neither.
        """
        if isinstance(output, Tensor) and output.ndim == 5:
            return output
        if isinstance(output, Tensor) and output.ndim == 4:
            return output.view(clips, -1, *output.shape[1:]).transpose(1, 2)
        shape = _shape(output)
        raise ConfigError(f"the output {shape} of the module has no feature maps (B, C, T, H, W): name another layer")

    def check_layers(self, names: Sequence[str]) -> None:
        """Raise a ConfigError if the backbone has no layer of one of the names."""
        for name in names:
            if name not in self.feature_layers:
                has = f"it has {', '.join(self.feature_layers)}" if self.feature_layers else f"use {_RESNETS}"
                raise ConfigError(f"{type(self).__name__} has no layer '{name}' with feature maps: {has}")

    @classmethod
    def check_regions(cls) -> None:
        """Raise a ConfigError if the backbone has no third stage; call it before long work with regions."""
        if cls.layer3 is Backbone.layer3:
            raise ConfigError(f"{cls.__name__} has no layer 3, which regions need: use {_RESNETS}")


class ResNet(Backbone):
    """A backbone of a stem and four stages; `features` and `layer4` are those of its kind."""

    feature_layers = ("stem", "layer1", "layer2", "layer3", "layer4")

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips (B, 3, T, H, W) as features (B, dim)."""
        return self.layer4(self.layer3(x))

    def layer3(self, x: Tensor) -> Tensor:
        """Compute the output of the third stage (B, C, T, H / 16, W / 16); with the cifar stem H / 4, W / 4."""
        return self.features(x, ("layer3",))[0]


def _check_features(backbone: nn.Module, inputs: tuple[Tensor, ...], features: Any) -> None:
    """Raise a ConfigError if a backbone of a plug-in makes something else than features (B, dim)."""
    if not isinstance(features, Tensor) or features.ndim != 2 or features.shape[1] != backbone.dim:
        result = f"{type(backbone).__name__} makes {_shape(features)} of clips {tuple(inputs[0].shape)}"
        raise ConfigError(f"backbone {result}, not (B, self.dim), and self.dim is {backbone.dim}")


def _shape(output: Any) -> tuple[int, ...] | str:
    """Return the shape of an output for a message; its type if it is no tensor."""
    return tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__


class ModuleBackbone(Backbone):
    """Any module from clips (B, 3, T, S, S) to features (B, D) as a backbone, without layers.

    `finish` is what the backbone has of this name. No layer has the last maps unless one is named.

    Raises:
        ConfigError: The module makes something else of a clip of `frames` (T) and `size` (S), or of several clips, or
            not the same features each time.
    """

    last_maps = ""

    def __init__(
        self, module: nn.Module, frames: int, size: int, finish: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.module, self._finish, self.training = module, finish, module.training
        source = torch.Generator().manual_seed(0)  # the random state of the caller is not touched
        clip = torch.rand(1, 3, frames, size, size, generator=source).to(device_of_weights(module))
        with torch.no_grad(), eval_mode(module):
            before, features = torch.get_rng_state(), self(clip).float()
            draws = not torch.equal(before, torch.get_rng_state())  # then two may be equal by chance
            repeated = torch.stack([self(clip) for _ in range(8 if draws else 3)])
        self.dim = features.shape[1]
        difference = (repeated - features).abs().max() / features.abs().max().clamp(min=1e-30)
        if difference > _SAME:
            fault = f"makes other features each time: they differ by {100 * difference:.2g} % of the largest value"
            raise ConfigError(f"{type(module).__name__} {fault}; switch off what it masks or drops at random")

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips."""
        try:
            features = self.module(x)
        except VidsslError:
            raise
        except Exception as error:  # of the module
            what = f"{type(self.module).__name__} fails for clips {tuple(x.shape)}"
            raise ConfigError(f"{what}: {in_one_line(error)}") from error
        if isinstance(features, Tensor) and features.ndim > 2 and features.shape[2:].numel() == 1:
            features = features.flatten(1)  # maps of one pixel
        return self._checked(features, x)

    def finish(self, features: Tensor) -> Tensor:
        """Return the features (…, dim) of videos as they are compared."""
        return features if self._finish is None else self._finish(features)

    def _checked(self, features: Any, clips: Tensor) -> Tensor:
        # Not `len`, which would make the size of a batch a constant of an exported graph.
        if not isinstance(features, Tensor) or features.shape[:-1] != clips.shape[:1] or not features.numel():
            wrong = _shape(features)
        elif features.is_complex():
            wrong = "complex numbers"
        else:
            return features
        result = f"{type(self.module).__name__} makes {wrong} of clips {tuple(clips.shape)}"
        raise ConfigError(f"{result}, not features ({len(clips)}, D): wrap it in a module that does")


def device_of_weights(module: nn.Module) -> torch.device:
    """Return the device of a module; the CPU if it has no weights."""
    tensors = (*module.parameters(), *module.buffers())
    return tensors[0].device if tensors else torch.device("cpu")


def run_stages(x: Tensor, stages: Mapping[str, Callable[[Tensor], Tensor]], out: Sequence[str]) -> list[Tensor]:
    """Apply named stages one after the other, up to the last that `out` names, and return the outputs it names."""
    outputs: dict[str, Tensor] = {}
    for name, stage in stages.items():
        x = stage(x)
        if name in out:
            outputs[name] = x
        if len(outputs) == len({*out}):
            break
    return [outputs[name] for name in out]


def compile_backbone(backbone: Backbone, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile a backbone in place; `layer3` and `layer4` separately, as methods with regions call them directly."""
    if type(backbone).layer3 is Backbone.layer3:
        backbone.compile(backend=backend)
        return
    for half in ("layer3", "layer4"):
        setattr(backbone, half, torch.compile(getattr(backbone, half), backend=backend))


BACKBONES: Registry[type[Backbone]] = Registry("backbone", "vidssl.models")


def build_backbone(name: str, **settings: Any) -> Backbone:
    """Build an untrained backbone; settings are fields of its `Config`: `build_backbone("resnet3d18", width=64)`."""
    backbone: Backbone = build(BACKBONES, bind_choice(BACKBONES, {"name": name, **settings}, "build_backbone"))
    return backbone
