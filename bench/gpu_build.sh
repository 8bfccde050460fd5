#!/usr/bin/env bash
# Sourced. build_for_gpu ROOT BUILD DEBS LOG: builds the command and every test for this machine's GPUs. DEBS, where not empty, is a folder of
# Debian packages, which are unpacked to BUILD/packages and used from there: for machines where nothing can be installed.
build_for_gpu() {
    local root=$1 build=$2 debs=$3 log=$4 packages=$2/packages libraries="" options=() file
    if [[ -n $debs ]]; then
        for file in "$debs"/*.deb; do
            [[ -d $packages.done ]] || dpkg-deb -x "$file" "$packages" || return
        done
        libraries=$(dirname "$(find "$packages/usr/lib" -name 'libyaml.so' -print -quit)")
        sed -i "s|^prefix=/usr|prefix=$packages/usr|" "$libraries"/pkgconfig/*.pc
        mkdir -p "$packages.done"
        # cmocka.pc names the folders of its library and its header without the prefix.
        export C_INCLUDE_PATH=$packages/usr/include${C_INCLUDE_PATH:+:$C_INCLUDE_PATH}
        export PKG_CONFIG_PATH=$libraries/pkgconfig LIBRARY_PATH=$libraries${LIBRARY_PATH:+:$LIBRARY_PATH}
        export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=$PATH:$packages/usr/bin # pkg-config, protoc-c
        options=("-DMEZZO_CHART_JS=$packages/usr/share/javascript/chart.js/chart.min.js")
    fi
    cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMEZZO_WERROR=OFF -DMEZZO_TESTS=ON -DMEZZO_CUDA="${MEZZO_CUDA:-ON}" \
        "-DMEZZO_CUDA_ARCH=$("$root/scripts/gpu-arch.sh")" "-DCMAKE_INSTALL_RPATH=$libraries" "${options[@]}" >"$log" 2>&1 &&
        cmake --build "$build" >>"$log" 2>&1 || { tail -n 30 "$log" && return 1; }
}
