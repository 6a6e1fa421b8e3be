"""examples/lightning_loop.py: a loop of Lightning on vidssl's clips, whose backbone all of vidssl takes afterwards."""

import runpy
from pathlib import Path

import pytest
import torch

import vidssl

pytest.importorskip("lightning")
SCRIPT = Path(__file__).parents[2] / "examples" / "lightning_loop.py"
pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning


def test_the_backbone_learns_and_is_taken_by_everything(digits, tmp_path, monkeypatch):
    names = runpy.run_path(str(SCRIPT))
    torch.manual_seed(0)
    model, clips = names["SimCLR"](), names["Clips"](str(digits / "motion/train.csv"), size=32)
    losses, epochs = [], []

    class Losses(names["lightning"].Callback):
        def on_train_epoch_end(self, trainer, module):
            losses.append(float(trainer.callback_metrics["loss"]))
            epochs.append(clips.epoch)

    loader = torch.utils.data.DataLoader(clips, batch_size=8, shuffle=True, drop_last=True)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    names["lightning"].Trainer(max_epochs=4, callbacks=[Losses()], **quiet).fit(model, loader)
    assert losses[-1] < losses[0] and epochs == [*range(4)]

    file = tmp_path / "own.safetensors"
    vidssl.save_backbone(model.backbone, file, cfg="small_video/simclr")
    options = {"clips": 2, "crops": 1, "workers": 0}
    videos = vidssl.read_input(digits / "motion/test.csv").rows(range(6))
    saved = vidssl.extract(file, videos, **options)
    direct = vidssl.extract(model.backbone.eval(), videos, cfg="small_video/simclr", **options)
    torch.testing.assert_close(saved.x, direct.x, rtol=0, atol=0)
    loaded = vidssl.load_backbone(file)
    clip = torch.randn(1, 3, 4, 64, 64)
    torch.testing.assert_close(loaded(clip), model.backbone(clip), rtol=0, atol=0)
    described = vidssl.export(model.backbone, to="folder", out=tmp_path / "folder", cfg="small_video/simclr")
    assert described["num_features"] == 128 and (tmp_path / "folder" / "README.md").exists()
    torch.testing.assert_close(vidssl.extract(tmp_path / "folder", videos, **options).x, direct.x, rtol=0, atol=0)
    with pytest.raises(vidssl.base.errors.VidsslError, match="this ResNet3D"):
        vidssl.save_backbone(model.backbone, file, cfg="toy/sce")
