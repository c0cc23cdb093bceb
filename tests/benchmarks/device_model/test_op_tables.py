"""Op-level tables: what each kind of header means, and that odd rows are counted instead of guessed at."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.device_model.aten_chain import chain
from benchmarks.device_model.op_tables import read_op_table
from benchmarks.device_model.tables import read_folder, read_measurements, soc_in
from opreplay.replay.ascend import list_devices, load_device
from opreplay.replay.ascend.calibrate.validate import groups_of_tables
from opreplay.replay.ascend.cost.predict import predict_kernel
from opreplay.replay.ascend.lowering import lower
from opreplay.traces.errors import Malformed, UsageError

PROBLEMS = """problem,soc,input_shapes,input_dtypes,output_shape,torch_npu_us,n_nonview_aten_ops,aten_ops,init_args
2_mm_,910B4,"64,128;128,32",float32;float32,"64,32",10,1,aten.mm.default,[]
17_turned_,910B4,"64,128;32,128",float32;float32,"64,32",11,1,aten.mm.default,[]
25_Swish,910B4,"16,1024",float32,"16,1024",12.5,2,aten.sigmoid.default aten.mul.Tensor,[]
52_Argmin_,910B4,"4,32,16",float32,"4,16",,1,aten.argmin.default,[1]
99_odd_,910B4,"4,-3",float32,"4",3,1,aten.relu.default,[]
"""


def write(tmp_path: Path, text: str, name: str = "table_910b4.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_problems_become_the_kernels_of_their_ops(tmp_path: Path) -> None:
    table = read_op_table(write(tmp_path, PROBLEMS))
    assert (table.kind, table.state) == ("KernelBench", "cold")
    by_label = {case.label: case for case in table.cases}
    mm, turned = by_label["mm"].kernels[0], by_label["turned"].kernels[0]
    assert mm.outputs == turned.outputs
    assert turned.attrs["transpose_b"] is True
    assert turned.inputs[1] is not None
    assert turned.inputs[1].shape == (32, 128)
    assert [k.type for k in by_label["Swish"].kernels] == ["Sigmoid", "Mul"]
    assert by_label["Argmin"].duration_us is None
    assert by_label["Argmin"].kernels[0].attrs["inner"] == 16
    assert table.dropped == {"sizes out of range": 1}


def test_named_problems_loops_and_serving(tmp_path: Path) -> None:
    named = read_op_table(
        write(
            tmp_path,
            "problem_id,operator,input_shapes,dtype,torch_npu_us\n"
            '38,L1Norm,"[[8, 64]]",float32,5\n1,Nobody,"[[1]]",f,1\n',
        )
    )
    assert [k.type for k in named.cases[0].kernels] == ["Abs", "ReduceSum", "RealDiv"]
    assert list(named.dropped) == ["nobody says what ops Nobody is"]
    loop = read_op_table(
        write(
            tmp_path,
            "op,kernel,shapes,dtype,n,median_us,mean_us\n"
            'expand,a_BroadcastToAiCore_BroadcastTo,"4,256,1->4,256,384",FLOAT16,,,4.4\n'
            'matmul,x_BatchMatMulV2,"4,256,256;4,256,32",FLOAT16,7,8.0,8.3\n',
        )
    )
    assert loop.state == "warm"
    spread, product = (case.kernels[0] for case in loop.cases)
    assert spread.outputs[0] is not None
    assert spread.outputs[0].shape == (4, 256, 384)
    assert product.outputs[0] is not None
    assert product.outputs[0].shape == (4, 256, 32)
    assert [case.duration_us for case in loop.cases] == [4.4, 8.0]
    served = read_op_table(
        write(
            tmp_path,
            "op,kernel,input_shapes,input_dtypes,input_formats,output_shapes,duration_us\n"
            'MatMul,g,"1,896;896,9728",FLOAT16;FLOAT16,ND;FRACTAL_NZ,"1,9728",16\n'
            'IncreFlashAttention (custom),g,"q 1,16,1,128; kv 1,2,1024,128",FLOAT16,ND,,13\n'
            'IncreFlashAttention,g,"q 2,32,1,128; kv 2,4,4096,128",FLOAT16,ND,,24\n'
            "Scatter,g,KV cache one token,FLOAT16,ND,,1.2\n",
        )
    )
    weight = served.cases[0].kernels[0].inputs[1]
    assert weight is not None
    assert (weight.shape, weight.format) == ((608, 56, 16, 16), "FRACTAL_NZ")
    assert served.cases[1].kernels[0].attrs["pairs"] == 2 * 32 * 4096
    assert served.dropped == {"a kernel written by hand": 1, "shapes are not recorded": 1}


def test_other_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="no op-level table"):
        read_op_table(write(tmp_path, "a,b\n1,2\n"))
    with pytest.raises(UsageError, match="is no folder"):
        read_folder(tmp_path / "nowhere", list_devices())
    write(tmp_path, "a,b\n1,2\n")
    with pytest.raises(Malformed, match="no tables"):
        read_folder(tmp_path, list_devices())


def test_a_folder_is_read_with_the_soc_of_each_file(tmp_path: Path) -> None:
    write(tmp_path, PROBLEMS, "problems_910b4.csv")
    write(tmp_path, PROBLEMS, "unnamed.csv")
    write(tmp_path, "a,b\n", "other.csv")
    found, others = read_folder(tmp_path, list_devices())
    assert [(Path(t.path).name, soc) for t, soc in found] == [("problems_910b4.csv", "910b4"), ("unnamed.csv", "910b4")]
    assert list(others) == ["other.csv"]
    groups = groups_of_tables(found)
    assert {g.table for g in groups} == {"problems_910b4", "unnamed"}
    assert soc_in("kernelbench_910b2_large.csv", list_devices()) == "910b2"
    assert soc_in("mm_910b4-1.csv", list_devices()) == "910b4-1"
    assert soc_in("step_times.csv", list_devices()) is None


def test_a_cold_chain_finds_in_l2_what_it_wrote_itself(tmp_path: Path) -> None:
    table = read_measurements(write(tmp_path, PROBLEMS))
    swish = next(one for one in table.launches if one.row.call.type == "Swish")
    first, second = swish.parts
    assert all(distance is None for _, distance in first.touches)
    assert any(distance is not None for _, distance in second.touches)


def test_chains_of_losses_and_norms_end_as_they_should() -> None:
    loss = chain(
        ("sub.Tensor", "pow.Tensor_Scalar", "mean.default"), [((8, 64), "float32"), ((8, 64), "float32")], [], ()
    )
    kernels = [kernel for call in loss for kernel in lower(call).kernels]
    assert kernels[0].type == "Sub"
    assert kernels[-1].outputs[0] is not None
    assert kernels[-1].outputs[0].shape == ()
    device = load_device("910b4")
    assert all(predict_kernel(k, device).time_us > 0 for k in kernels)


def test_problems_keep_the_aten_calls_that_they_make(tmp_path: Path) -> None:
    cases = {case.label: case for case in read_op_table(write(tmp_path, PROBLEMS)).cases}
    assert [call.name for call in cases["Swish"].calls] == ["aten::sigmoid", "aten::mul"]
    assert [kernel.type for kernel in cases["Swish"].kernels] == ["Sigmoid", "Mul"]
