r"""Test a network on a list: accuracy over many crops, kNN, linear SVM, low-shot, retrieval: `vidssl test`.

python tools/test_net.py lists/ucf101/test1.csv --checkpoint output/ucf101/checkpoints/last.pt \
        --protocol accuracy --out output/ucf101/test
python tools/test_net.py lists/mine/test.csv --train-list lists/mine/train.csv \
        --checkpoint output/mine/checkpoints/last.pt --out output/mine/test \
        --protocol knn k=20 svm lowshot draws=10 retrieval
python tools/test_net.py 'lists/mine/split{split}/test.csv' --train-list 'lists/mine/split{split}/train.csv' \
        --checkpoint 'output/mine/split{split}/checkpoints/last.pt' --splits 1 2 3 --protocol svm --out output/mine/test
"""

from vidssl.cli import main

if __name__ == "__main__":
    main("test")
