"""What shows a study to other programs while it runs (`pipeline.base.domain.protocols.Exporter`)."""
