"""Write the lists of TrackingNet; the same as `vidssl prepare trackingnet`.

python datasets/prepare_trackingnet.py /data/TrackingNet --out lists/trackingnet
python datasets/prepare_trackingnet.py /data/TrackingNet --chunks 0 1 2 3 --out lists/trackingnet4
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("prepare", "trackingnet")
