"""The jobs of vidssl as functions, one module for each: `vidssl.train` is `vidssl.jobs.train.train`, and so on."""
