"""ssim.py: the values of tests/unit/test_pictures.c's scores, by scikit-image (pip install scikit-image==0.26.0).
Pictures are integers in closed form, so that the test makes the same ones."""
import numpy as np
from skimage.metrics import mean_squared_error, normalized_root_mse, peak_signal_noise_ratio, structural_similarity

for height, width, step in ((16, 16, 3), (13, 29, 7), (40, 33, 1)):
    i = np.arange(height * width).reshape(height, width)
    truth = ((i * 37 + i // width * 11) % 251).astype(np.float32) / np.float32(255)
    predicted = ((i * 37 + i // width * 11 + (i * step) % 23) % 251).astype(np.float32) / np.float32(255)
    t, p = truth.astype(np.float64), predicted.astype(np.float64)
    ssim = structural_similarity(t, p, data_range=1, gaussian_weights=True, sigma=1.5, use_sample_covariance=False)
    nmse = normalized_root_mse(t, p) ** 2
    rmse = np.sqrt(mean_squared_error(t, p))
    psnr = peak_signal_noise_ratio(t, p, data_range=1)
    print(f"{{{height}, {width}, {step}, {nmse:.17g}, {rmse:.17g}, {psnr:.17g}, {ssim:.17g}}},")
