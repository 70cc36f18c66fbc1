"""What the tests run against: own Redis servers, a faulty network, a movable clock."""
