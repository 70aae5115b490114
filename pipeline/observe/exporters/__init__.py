"""What shows a study to other programs while it runs (`pipeline.base.protocols.Exporter`)."""
