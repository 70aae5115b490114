"""The results in MLflow. Only these modules import MLflow."""
