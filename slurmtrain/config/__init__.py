"""Job files and settings, validated strictly."""
