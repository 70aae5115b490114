"""Exporters, which publish a running study to other programs (`pipeline.base.domain.protocols.Exporter`)."""
