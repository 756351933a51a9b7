"""What wakes and shows: the alerts of the chart."""
