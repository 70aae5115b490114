"""Exporters, which show a running study to other programs (`pipeline.base.domain.protocols.Exporter`)."""
