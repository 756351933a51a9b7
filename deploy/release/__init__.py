"""Makes the files of a release from a commit: wheels, chart, image, bills of materials, checksums, provenance."""
