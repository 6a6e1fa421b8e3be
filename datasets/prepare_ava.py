"""Write lists of the key frames of AVA with their persons and actions; the same as `vidssl prepare ava`.

python datasets/prepare_ava.py /data/ava/videos --annotations /data/ava/annotations --out lists/ava
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("prepare", "ava")
