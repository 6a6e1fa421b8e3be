r"""Write the lists of a folder of videos; the same as `vidssl prepare folder`.

python datasets/prepare_folder.py /data/actions --out lists/actions --test 0.33 --group 'person\d+'
python datasets/prepare_folder.py /data/street --out lists/street --labels /data/street/labels.csv \
        --group-column source_id
python datasets/prepare_folder.py /data/images --out lists/images --images
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("prepare", "folder")
