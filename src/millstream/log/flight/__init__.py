"""An embedded log on another machine, through `millstream listen flight`: records travel as Arrow columns."""
