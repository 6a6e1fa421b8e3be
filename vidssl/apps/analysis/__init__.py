"""What networks see: invariances, robustness, classes, backgrounds and Grad-CAM, on changed versions of clips."""
